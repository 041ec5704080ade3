"""What can be refused before a job is submitted: found with label and roles, without torch.

Snakemake asks this when it is called. `outlast check` goes further: it builds what a run trains.
"""

from collections.abc import Sequence
from pathlib import Path

from outlast.data.labels import read_labels
from outlast.data.names import missing_names
from outlast.data.sources import BUILT_INS, read_without_inputs
from outlast.data.tables import SEPARATORS
from outlast.errors import DataError
from outlast.metric_names import operating_point
from outlast.objective.misfits import misfits
from outlast.recipe import used_roles
from outlast.sections import Config

# Of a larger table the columns of label and roles take long to find. The job that reads all of it
# refuses the same.
LARGE_TABLE_BYTES = 500 * 2**20


def problems_before_jobs(configs: Sequence[Config]) -> list[str]:
    """Return a line for each thing in the configs of a sweep that its data do not go with.

    Empty where the source is not there yet: another rule may make it.
    """
    section = configs[0].data
    if problems := missing_names(section):
        return problems
    asking = [config for config in configs if _asks_about_rows(config)]
    if not asking or not _is_quick_to_read(section.source):
        return []
    try:
        labels = read_labels(read_without_inputs(section), section)
    except DataError as error:
        return [str(error)]
    return list(dict.fromkeys(line for config in asking for line in misfits(config, labels)))


def _asks_about_rows(config: Config) -> bool:
    """Tell whether a setting may not fit the labels; the defaults fit any."""
    loss, metric = config.loss, config.training.selection_metric
    is_default = loss.name == "auto" and loss.class_weights == "none"
    return not is_default or operating_point(metric) is not None or bool(used_roles(config))


def _is_quick_to_read(source: str) -> bool:
    path = Path(source).expanduser()
    if source in BUILT_INS or path.is_dir():
        return True
    if not path.is_file():
        return False
    return path.suffix.lower() not in SEPARATORS or path.stat().st_size <= LARGE_TABLE_BYTES
