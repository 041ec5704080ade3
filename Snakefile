# Trains every run of an experiment and compares them.
#   snakemake --profile profiles/local                              config/config.yaml
#   snakemake --profile profiles/local --configfile FILE.yaml       another experiment
from snakemake.utils import min_version

min_version("9.27")


# Snakemake merges a --configfile into this one: the sweep of the default experiment would leak
# into every other. So it is read only when no other is named.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/launch.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


localrules:
    all,


rule all:
    default_target: True
    input:
        expand(rules.collect.output, experiment=EXPERIMENT.experiment),
        expand(rules.curves.output, experiment=EXPERIMENT.experiment, run=RUNS),
