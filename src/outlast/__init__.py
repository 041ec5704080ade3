"""Training that outlasts walltimes: PyTorch classifiers under Snakemake, resumed to the bit."""
