"""The order of settings and runs: by the validation split, never by the test split."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.report.results import RunResult


@dataclass(frozen=True)
class Summary:
    """Mean over the replicates, and their standard deviation (n - 1 below the sum).

    Both None where a replicate is undefined; ``sd`` None for a single replicate.
    """

    mean: float | None
    sd: float | None


@dataclass(frozen=True)
class Setting:
    """One combination of swept values and its replicates, the best of them first."""

    name: str
    runs: list[RunResult]
    selection: Summary
    scores: dict[str, Summary]
    best_epoch: float


def rank(results: Sequence[RunResult]) -> list[Setting]:
    """Return the settings, best first; the first run of the first setting is the best run.

    The order is that of the mean validation selection metric. A test metric has no say: the
    winner of a contest on the test split owes part of its score to luck on just these rows, and
    the number that is left to report would no longer estimate the error on new data.
    Undefined values come last, equal ones in the order of their names.
    """
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.setting, []).append(result)
    lower_first = results[0].selection_metric == "val_loss"
    settings = [_make_setting(name, runs, lower_first) for name, runs in groups.items()]
    return sorted(settings, key=lambda it: _place(it.selection.mean, it.name, lower_first))


def _make_setting(name: str, runs: list[RunResult], lower_first: bool) -> Setting:
    return Setting(
        name=name,
        runs=sorted(runs, key=lambda run: _place(run.selection, run.name, lower_first)),
        selection=summarize([run.selection for run in runs]),
        scores={score: summarize([run.scores[score] for run in runs]) for score in runs[0].scores},
        best_epoch=statistics.fmean(run.best_epoch for run in runs),
    )


def _place(value: float | None, name: str, lower_first: bool) -> tuple[bool, float, str]:
    """Return a sort key: defined before undefined, then by value, then by name."""
    if value is None:
        return True, 0.0, name
    return False, value if lower_first else -value, name


def summarize(values: Sequence[float | None]) -> Summary:
    """Return mean and standard deviation (ddof 1) of the replicates' values."""
    # leaving undefined replicates out would flatter a setting that fails for some seeds
    defined = [value for value in values if value is not None]
    if len(defined) < len(values) or not defined:
        return Summary(None, None)
    sd = statistics.stdev(defined) if len(defined) > 1 else None
    return Summary(statistics.fmean(defined), sd)
