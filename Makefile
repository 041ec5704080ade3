# make demo: install, run the example, show its leaderboard.   make test: install, run the tests.
# Everything lives in .venv, in the versions of requirements.lock. Each target is safe to repeat.

# the first of these that is a working Python >= 3.11; or say `make PYTHON=/path/to/python`
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
	done)
BIN := .venv/bin
STAMP := .venv/.installed
SNAKEFILES := Snakefile workflow/rules
REPORT := results/digits/report.html
# most of a real run's test is the start of processes: two of them at a time keep two cores busy
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

# the rules of the workflow call `outlast` and `torchrun` by name
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test test-slow test-slurm slurm-up slurm-down chaos check format docs clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	@$(BIN)/snakemake --profile profiles/local
	@$(MAKE) --no-print-directory $(REPORT)
	@$(BIN)/outlast leaderboard results/digits/leaderboard.tsv
	@echo "Report: $(CURDIR)/$(REPORT)"

# a second make: only now do the files exist whose age decides whether the report is a new one
$(REPORT): results/digits/leaderboard.tsv results/digits/confusion.png \
		$(wildcard workflow/report/*.rst results/digits/runs/*/curves.png)
	@$(BIN)/snakemake --profile profiles/local --report $@

test: $(STAMP)
	$(PYTEST) --dist loadfile -m "not slow and not slurm"

test-slow: $(STAMP)
	$(PYTEST) --dist load -m "slow and not long"

# on a real SLURM, of some daemons on this machine; much of it is waiting, so four at a time, but for
# those that take slurmctld away
test-slurm: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 4 --dist load -m "slurm and not alone" tests/slurm
	$(BIN)/python -m pytest -m "slurm and alone" tests/slurm

# the same cluster, to look at by hand: eight nodes that are all this machine
slurm-up slurm-down: $(STAMP)
	@$(BIN)/python tests/slurm/cluster.py $(@:slurm-%=%)

# kills at random, as many as asked: make chaos KILLS=1000 SEED=7
KILLS ?= 200
SEED ?= 0
chaos: $(STAMP)
	@PYTHONPATH=tests/support $(BIN)/python -m chaos --kills $(KILLS) --seed $(SEED)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check $(SNAKEFILES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakemake --lint
	$(BIN)/python -m outlast.config_reference --check

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt $(SNAKEFILES)

docs: $(STAMP)
	$(BIN)/python -m outlast.config_reference

# results and logs stay: they are hours of somebody's training
clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache src/*.egg-info

# The stamp comes last, so that an interrupted installation starts again; pip then leaves alone
# what is complete. An environment without a working pip is made anew.
$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "outlast needs Python 3.11 or newer: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Installing into .venv (minutes the first time: torch is large)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --no-build-isolation -e .
	@touch $@
