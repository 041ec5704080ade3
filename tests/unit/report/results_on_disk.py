"""Result files of runs, as training and evaluation write them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Value = float | None


def write_json(path: Path, content: Any) -> Path:
    """Write ``content``, making folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def make_history(
    selection: Sequence[Value], metric: str | None = "val_f1", rates: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return a history whose best epoch is the first with the largest selection value."""
    epochs = list(range(1, len(selection) + 1))
    loss = [1.0 / epoch for epoch in epochs]
    defined = [value for value in selection if value is not None]
    best = selection.index(max(defined)) if defined else 0
    return {
        "epoch": epochs,
        "train_loss": loss,
        "train_acc": [0.9 - 0.3 / epoch for epoch in epochs],
        "val_loss": [value + 0.1 for value in loss] if metric else [None] * len(epochs),
        "val_acc": [0.8 - 0.3 / epoch if metric else None for epoch in epochs],
        "val_auc": list(selection),
        "val_f1": list(selection),
        "val_selection": list(selection),
        "learning_rate": list(rates or [1e-3] * len(epochs)),
        "seconds": [1.0] * len(epochs),
        "samples_per_second": [100.0] * len(epochs),
        "best": {"epoch": epochs[best], "val_selection": selection[best]},
        "selection_metric": metric,
        "stopped": "completed",
        "fingerprint": "f",
        "attempts": 1,
    }


def make_metrics(score: Value, confusion: list[list[int]], split: str = "test") -> dict[str, Any]:
    """Return metrics with ``score`` for all of accuracy, F1 and AUROC."""
    return {
        "split": split,
        "rows": sum(map(sum, confusion)),
        "loss": 0.5,
        "accuracy": score,
        "f1": score,
        "auc": score,
        "classes": [f"class {place}" for place in range(len(confusion))],
        "confusion": confusion,
    }


def write_run(
    folder: Path, selection: Value, test: Value, metric: str = "val_f1", epoch: int = 1
) -> None:
    """Write a run of two classes with its best value at ``epoch``."""
    history = make_history([selection], metric)
    history["best"]["epoch"] = epoch
    write_json(folder / "history.json", history)
    metrics = make_metrics(test, [[5, 1], [2, 4]])
    if ":" in metric:
        metrics[metric] = test and test / 2  # told apart from the other scores
    write_json(folder / "test" / "metrics.json", metrics)


def write_experiment(
    root: Path, settings: dict[str, list[tuple[Value, Value]]], metric: str = "val_f1"
) -> Path:
    """Write runs of (validation, test) values per setting; return the list of runs."""
    runs = []
    for setting, pairs in settings.items():
        for seed, (selection, test) in enumerate(pairs):
            name = f"{setting}__seed={seed}"
            runs.append({"name": name, "setting": setting, "values": {"training.seed": seed}})
            write_run(root / "runs" / name, selection, test, metric, epoch=seed + 1)
    return write_json(root / "runs.json", runs)
