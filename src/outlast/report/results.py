"""What the finished runs of an experiment achieved, read from their JSON files."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.errors import DataError
from outlast.metric_names import metric_words

SCORES = ("accuracy", "f1", "auc", "loss")
_SCORE_OF_METRIC = {"val_acc": "accuracy", "val_f1": "f1", "val_auc": "auc", "val_loss": "loss"}
_WORDS = {"val_acc": "accuracy", "val_f1": "F1", "val_auc": "AUROC", "val_loss": "loss"}


def score_of(metric: str | None) -> str:
    """Return the score of metrics.json that measures what this selection metric measures.

    A parametric one is there under its own name. Without any: the accuracy.
    """
    if metric and metric_words(metric):
        return metric
    return _SCORE_OF_METRIC.get(metric or "", "accuracy")


def words_of(metric: str) -> str:
    """Return what people call a selection metric: ``AUROC``, ``TPR at FPR 0.01``."""
    return _WORDS.get(metric) or metric_words(metric) or metric


@dataclass(frozen=True)
class RunResult:
    """One run, at its best epoch.

    Attributes:
        selection_metric: What chose the epoch, such as ``val_f1``; None without validation.
        selection: Its value on the validation split; None where undefined.
        split: Split that ``scores`` were computed on: ``test``, or ``validation`` without one.
        scores: One value, or None where undefined, for each name of ``SCORES``, and for the
            selection metric where that is a parametric one.
        metrics_file: Where ``scores`` were read from.
    """

    name: str
    setting: str
    selection_metric: str | None
    selection: float | None
    best_epoch: int
    stopped: str
    split: str
    scores: dict[str, float | None]
    metrics_file: Path


def read_results(runs_file: Path, experiment_folder: Path) -> list[RunResult]:
    """Return the results of every run that ``runs_file`` lists, in its order.

    Args:
        runs_file: JSON list of ``{"name", "setting", "values"}``.
        experiment_folder: Holds ``runs/<name>/history.json`` and
            ``runs/<name>/test/metrics.json``.

    Raises:
        DataError: Results are missing or unreadable (the runs are named), or the runs were
            selected on different metrics, so that no order among them has a meaning.
    """
    runs = read_json(runs_file)
    folders = {run["name"]: experiment_folder / "runs" / run["name"] for run in runs}
    _refuse_missing(folders)
    results = [_read_run(run["name"], run["setting"], folders[run["name"]]) for run in runs]
    metrics = sorted({str(result.selection_metric) for result in results})
    if len(metrics) > 1:
        raise DataError(
            f"the runs of {experiment_folder} were selected on different metrics"
            f" ({', '.join(metrics)}), which have no common order; take"
            " training.selection_metric out of the sweep, or compare them in two experiments"
        )
    return results


def _refuse_missing(folders: Mapping[str, Path]) -> None:
    files = [
        folder / name
        for folder in folders.values()
        for name in ("history.json", "test/metrics.json")
    ]
    missing = [str(file) for file in files if not file.is_file()]
    if not folders:
        raise DataError("the list of runs is empty; give the experiment at least one run")
    if missing:
        shown = "\n".join(f"  - {file}" for file in missing[:5])
        more = f"\n  and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise DataError(
            f"{len(missing)} of {len(files)} result files are missing; run snakemake again to"
            f" train and evaluate what is left:\n{shown}{more}"
        )


def _read_run(name: str, setting: str, folder: Path) -> RunResult:
    history = read_json(folder / "history.json")
    metrics_file = folder / "test" / "metrics.json"
    metrics = read_json(metrics_file)
    try:
        metric = history["selection_metric"]
        names = dict.fromkeys([*SCORES, score_of(metric)])
        return RunResult(
            name=name,
            setting=setting,
            selection_metric=metric,
            selection=_number(history["best"]["val_selection"]),
            best_epoch=int(history["best"]["epoch"]),
            stopped=str(history["stopped"]),
            split=metrics["split"],
            scores={score: _number(metrics[score]) for score in names},
            metrics_file=metrics_file,
        )
    except KeyError as error:
        raise DataError(
            f"run {name}: {error} is missing from {folder}/history.json or {metrics_file}; they"
            " come from another version: remove both and run snakemake again"
        ) from None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: It is absent, or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is no valid JSON ({error}); remove it and run again") from error


def _number(value: float | None) -> float | None:
    """Return ``value``, or None where it is undefined (null, or not finite)."""
    return float(value) if value is not None and math.isfinite(value) else None
