# The experiment and its runs. Imports no torch: a sweep of a thousand runs parses in seconds.
import functools
import json
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from outlast.check.before_jobs import problems_before_jobs
from outlast.config import parse as parse_experiment  # Snakemake has a global named parse
from outlast.config import read_yaml
from outlast.errors import ConfigError, listed
from outlast.files import write_json
from outlast.lost_jobs import notice_lost_jobs
from outlast.submissions import mend_submissions
from outlast.sections import BUILT_IN_SOURCES
from outlast.sweep import expand as expand_sweep
from outlast.user_code import user_files

try:
    CONFIG_NAME = ", ".join(map(str, workflow.configfiles)) or "the configuration"
    for file in workflow.overwrite_configfiles or workflow.configfiles:
        read_yaml(Path(file))  # Snakemake has read it, and keeps the last of two equal keys
    EXPERIMENT = parse_experiment(config, CONFIG_NAME)
    RUNS = {run.name: run for run in expand_sweep(config, CONFIG_NAME)}
except ConfigError as error:
    # Snakemake prints a WorkflowError without a traceback
    raise WorkflowError(str(error)) from None

# The schema that editors use, against the checked values: YAML 1.1 reads 1e-3 as text, which
# outlast.config understands and a JSON schema does not.
validate(EXPERIMENT.model_dump(mode="json"), "../schemas/config.schema.json", set_default=False)


wildcard_constraints:
    experiment="[^/]+",
    run="[^/]+",


def run_of(wildcards):
    """The run that a path names, or an error that says which there are."""
    if wildcards.experiment == EXPERIMENT.experiment and wildcards.run in RUNS:
        return RUNS[wildcards.run]
    raise WorkflowError(
        f"{wildcards.experiment}/{wildcards.run} is no run of {CONFIG_NAME}, whose experiment is"
        f" {EXPERIMENT.experiment} with {len(RUNS)} runs: {listed(list(RUNS))}"
    )


def values_of_run(wildcards):
    """What shapes the numbers of a run, as JSON. Sorted: the order of keys means nothing."""
    return json.dumps(run_of(wildcards).values_of_numbers(), sort_keys=True)


def values_of_data(wildcards):
    """The data section, as JSON."""
    content = EXPERIMENT.model_dump(mode="json", include={"data"}, exclude_defaults=True)
    return json.dumps(content, sort_keys=True)


def list_of_runs(wildcards):
    """Name, setting and swept values of every run."""
    return [
        {"name": run.name, "setting": run.setting, "values": run.values} for run in RUNS.values()
    ]


@functools.cache
def problems_of_data():
    """What does not fit the data, told before any job. A job's own process need not ask again."""
    if not workflow.is_main_process:
        return []
    return problems_before_jobs([run.config for run in RUNS.values()])


def source_files(wildcards):
    """The user's own files behind `data.source`; none for a built-in data set."""
    # here and not above: the job of a rule that writes the source must not be refused for it
    if problems := problems_of_data():
        raise WorkflowError(str(ConfigError(problems, CONFIG_NAME)))
    if EXPERIMENT.data.source in BUILT_IN_SOURCES:
        return []
    source = Path(EXPERIMENT.data.source).expanduser()
    if source.is_dir():
        return sorted(str(path) for path in source.glob("*.npy"))
    return [str(source)]  # of another rule, perhaps; if not, Snakemake names it as missing


def network_files(wildcards):
    """The user's own code behind `model.network`; none for a built-in or a library."""
    return files_of_network(run_of(wildcards).config.model.network)


@functools.cache
def files_of_network(network):
    """Cached: a thousand runs share one network."""
    return [str(path) for path in user_files(network)]


def of_every_run(pattern):
    """Fill `run` of a pattern with every run, and leave `experiment` open."""
    return expand(pattern, run=RUNS, allow_missing=True)
