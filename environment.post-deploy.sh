#!/usr/bin/env bash
# Snakemake runs this inside a conda environment that it has just made from environment.yml.
# Its working directory is that of the workflow: the checkout.
set -euo pipefail
python -m pip install --no-deps --no-build-isolation .
