"""Everything about an experiment that training would refuse, found with what trains.

The data are read as `prepare` reads them. Of a thousand runs, each distinct objective and each
distinct network is built once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.data.names import missing_names
from outlast.data.store import read_data
from outlast.distributed import CPU, Distributed
from outlast.errors import ConfigError, DataError, OutlastError
from outlast.model.heads import StudyNetwork
from outlast.objective.build import build_objective
from outlast.objective.misfits import BINARY, resolve_loss
from outlast.objective.objective import Objective
from outlast.sections import Config, DataSection
from outlast.sweep import Run
from outlast.train.run import build_study
from outlast.train.selection import resolve_metric
from outlast.train.single_rows import refuse_single_rows

MOST_NAMES = 3  # runs that a problem names


@dataclass(frozen=True, eq=False)
class Resolved:
    """A good experiment, with what its config leaves to the data.

    Attributes:
        source: Of the config.
        runs: All of them, in order.
        data: Read and split.
        losses: Name of each loss that a run has.
        metric: That selects the epoch.
        parameters: Number of trained values of each network that a run has, heads included.
    """

    source: str
    runs: list[Run]
    data: DataSet
    losses: list[str]
    metric: str
    parameters: list[int]


def check(runs: list[Run], source: str) -> Resolved:
    """Read the data of an experiment and build what its runs train, but train nothing.

    Args:
        runs: From ``expand``: their configs are good as far as configs go.
        source: Of the config, for messages.

    Raises:
        ConfigError: With a line for each problem, and the runs that have it unless all do.
    """
    data = _read(runs[0].config.data, source)
    problems = _Problems(runs)
    objectives = _build_objectives(runs, data, problems)
    parameters = _build_networks(runs, data, objectives, problems)
    if lines := problems.lines():
        raise ConfigError(lines, source)
    losses = dict.fromkeys(objectives[run.name].name for run in runs)
    metric = resolve_metric(runs[0].config.training, len(data.classes))  # it cannot be swept
    return Resolved(source, runs, data, list(losses), metric, parameters)


def _read(section: DataSection, source: str) -> DataSet:
    if problems := missing_names(section):  # all of them; reading would end at the first
        raise ConfigError(problems, source)
    try:
        return read_data(section)[0]
    except DataError as error:
        raise ConfigError([str(error)], source) from error


class _Problems:
    """Messages, and the runs that each concerns."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._total = len(runs)
        self._names: dict[str, list[str]] = {}

    @contextmanager
    def of(self, runs: Sequence[Run]) -> Iterator[None]:
        """Take note of what is refused within, and go on behind."""
        try:
            yield
        except ConfigError as error:
            self._add(error.problems, runs)
        except OutlastError as error:
            self._add([str(error)], runs)

    def _add(self, messages: Sequence[str], runs: Sequence[Run]) -> None:
        for message in messages:
            self._names.setdefault(message, []).extend(run.name for run in runs)

    def lines(self) -> list[str]:
        return [message + self._of_runs(names) for message, names in self._names.items()]

    def _of_runs(self, names: Sequence[str]) -> str:
        if len(names) == self._total:
            return ""
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f" (run{'s' if len(names) > 1 else ''} {'; '.join(names[:MOST_NAMES])}{more})"


def _build_objectives(
    runs: Sequence[Run], data: DataSet, problems: _Problems
) -> dict[str, Objective]:
    """Return the objective of each run by its name; a stand-in where it was refused."""
    objectives: dict[str, Objective] = {}
    for alike in _alike(runs, lambda run: (_json(run.config.loss), _json(run.config.regression))):
        config = alike[0].config
        objective = None
        with problems.of(alike):
            objective = build_objective(config, data)
        objective = objective or _stand_in(config, data)
        objectives |= {run.name: objective for run in alike}
    return objectives


def _stand_in(config: Config, data: DataSet) -> Objective:
    """Return an objective with as many logits, so that the network is tried all the same."""
    name, classes = resolve_loss(config.loss.name, len(data.classes)), len(data.classes)
    return Objective(name, 1 if name in BINARY and classes == 2 else classes)


def _build_networks(
    runs: Sequence[Run], data: DataSet, objectives: dict[str, Objective], problems: _Problems
) -> list[int]:
    """Build and try each distinct network; return the number of values that each trains."""
    parameters: set[int] = set()
    reader = BatchReader(data, CPU)

    def network_of(run: Run) -> Any:
        heads = (run.config.adversary.strength > 0, run.config.regression.weight > 0)
        augment = _json(run.config.training.augment)
        return _json(run.config.model), heads, objectives[run.name].num_outputs, augment

    for alike in _alike(runs, network_of):
        with problems.of(alike):
            study = build_study(alike[0].config, data, objectives[alike[0].name])
            parameters.add(sum(p.numel() for p in study.parameters() if p.requires_grad))
            _try_single_rows(study, alike, data, reader, problems)
    return sorted(parameters)


def _try_single_rows(
    study: StudyNetwork,
    runs: Sequence[Run],
    data: DataSet,
    reader: BatchReader,
    problems: _Problems,
) -> None:
    launch = runs[0].config.launch
    if launch.world_size > 1 and launch.device != "cpu":
        return  # on GPUs the ranks normalize together, and they may be elsewhere
    ranks = Distributed(0, launch.world_size)
    pieces = _alike(
        runs, lambda run: (run.config.training.batch_size, run.config.training.grad_accum_split)
    )
    for alike in pieces:
        with problems.of(alike):
            refuse_single_rows(study, reader, data, alike[0].config, ranks)


def _alike(runs: Sequence[Run], key: Callable[[Run], Any]) -> list[list[Run]]:
    """Return the runs in groups of one key each, in the order in which they come up."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _json(section: Any) -> str:
    text: str = section.model_dump_json()
    return text
