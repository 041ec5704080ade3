"""Metrics and predictions of one model on the rows that were held out."""

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from outlast.data.dataset import DataSet
from outlast.data.roles import valid_targets
from outlast.data.store import open_data
from outlast.errors import DataError, listed
from outlast.evaluate.predict import check_inputs, predict
from outlast.files import write_atomically, write_json
from outlast.model.file import ModelFile, load_model_file
from outlast.objective.losses import bce, cross_entropy
from outlast.objective.objective import decide
from outlast.objective.scores import probabilities, score

log = logging.getLogger("outlast")

CPU = torch.device("cpu")
OTHER_DATA = (
    "the model was trained on other data than these, or on another split of the same: rows that"
    " it was trained on may be among those scored here, and the numbers too good"
)


def evaluate(
    model_path: Path, data_folder: Path, out_folder: Path, device: torch.device = CPU
) -> dict[str, Any]:
    """Score a model file on the test split, and keep what it predicts for each row.

    Writes ``metrics.json`` and ``predictions.parquet``. Data without a test split are scored on
    the validation split; the key ``split`` says which, since numbers on the split that chose the
    epoch are too good. Other data than the model was trained on are scored with a warning, and
    ``data_of_training`` is false.

    Args:
        model_path: model_best.pt.
        data_folder: A prepared data set.
        out_folder: Made where absent.
        device: Where the network runs.

    Returns:
        What metrics.json holds; None where a metric is undefined.

    Raises:
        CheckpointError: The model file cannot be used.
        DataError: The data have other classes or inputs than the model, or no held-out rows.
    """
    model_file, data = load_model_file(model_path), open_data(data_folder)
    check_inputs(model_file, data)
    _check_classes(model_file, data)
    if model_file.data_content != data.content:
        log.warning("%s: %s", data_folder, OTHER_DATA)
    split = _held_out_split(data)
    rows = np.asarray(data.splits[split])
    predictions = predict(model_file, data, rows, device)
    logits = predictions.logits
    label = torch.from_numpy(np.asarray(data.label)[rows])
    metrics = {"split": split, "data_of_training": model_file.data_content == data.content}
    origin = _origin(model_file)
    metrics |= measure(logits, label, data.classes, origin["selection_metric"]) | origin
    out_folder.mkdir(parents=True, exist_ok=True)
    table = tabulate_predictions(logits, label, rows, data.classes)
    target = data.roles.get("target")
    if predictions.target is not None:
        predicted = predictions.target.numpy()
        table["predicted_target"] = predicted
        if target is not None:
            unit = model_file.config["regression"]["range"] == "unit"
            metrics["regression"] = measure_regression(predicted, target[rows], unit)
            table["target"] = target[rows]
    content = io.BytesIO()
    table.to_parquet(content, index=False)
    write_atomically(out_folder / "predictions.parquet", content.getvalue())
    write_json(out_folder / "metrics.json", metrics)
    return metrics


def _check_classes(model_file: ModelFile, data: DataSet) -> None:
    if model_file.classes != data.classes:
        lacking = [name for name in model_file.classes if name not in data.classes]
        unknown = [name for name in data.classes if name not in model_file.classes]
        raise DataError(
            f"data.label: the model knows {len(model_file.classes)} classes and the data have"
            f" {len(data.classes)}, or another order (not in the data: {listed(lacking)};"
            f" not in the model: {listed(unknown)}); evaluate on data with the same classes"
        )


def _held_out_split(data: DataSet) -> str:
    for split in ("test", "validation"):
        if len(data.splits[split]):
            return split
    raise DataError(
        "data.split: test and validation are both empty, so there is no row to evaluate on; give"
        " one of them a share above 0"
    )


def measure(
    logits: Tensor, label: Tensor, classes: list[str], selection_metric: str = "auto"
) -> dict[str, Any]:
    """Return the metrics of a whole split as plain values; None where undefined.

    Args:
        logits: float32, shape (N, K), or (N, 1) for two classes; N > 0.
        label: int64, shape (N,).
        classes: K names.
        selection_metric: A parametric one, such as ``tpr_at_fpr:0.01``, is measured on these rows
            too, under its name and at their own threshold; the others are here in any case.

    Returns:
        ``loss`` is the mean cross-entropy in nats, without weights or smoothing, summed in
        float64. ``confusion[true][predicted]`` counts rows. Two classes: F1 and AUROC of class 1;
        more: macro averages.
    """
    loss = bce if logits.shape[1] == 1 else cross_entropy
    scores = score(logits, label, selection_metric)
    confusion = count_confusion(label, decide(logits), len(classes))
    return {
        "rows": len(label),
        "loss": float(loss(logits.double(), label).sum()) / len(label),
        "accuracy": scores.accuracy,
        "f1": scores.f1,
        "auc": scores.auc,
        **scores.points,
        "classes": classes,
        "positive_class": classes[1] if len(classes) == 2 else None,  # of F1 and AUROC
        "confusion": confusion.tolist(),
        "per_class": [_class_metrics(confusion, place, name) for place, name in enumerate(classes)],
    }


def measure_regression(predicted: np.ndarray, target: np.ndarray, unit: bool) -> dict[str, Any]:
    """Return the errors of the regression head over the rows that have a target, in float64.

    Args:
        predicted: (N,), in the unit of the target.
        target: (N,), NaN where missing; with ``unit`` also where negative.
        unit: Targets lie in [0, 1].

    Returns:
        ``rows`` that count, mean squared and mean absolute error, and ``r2`` = 1 - squared error /
        that of the mean of these rows; None where undefined.
    """
    valid = valid_targets(target, unit)
    truth, guess = target[valid].astype(np.float64), predicted[valid].astype(np.float64)
    if len(truth) == 0:
        return {"rows": 0, "mse": None, "mae": None, "r2": None}
    squared = float(np.square(guess - truth).mean())
    spread = float(truth.var())
    return {
        "rows": len(truth),
        "mse": squared,
        "mae": float(np.abs(guess - truth).mean()),
        "r2": 1 - squared / spread if spread else None,
    }


def count_confusion(label: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """Return int64 counts, shape (num_classes, num_classes): true class by predicted class."""
    pairs = label * num_classes + predicted
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def _class_metrics(confusion: Tensor, place: int, name: str) -> dict[str, Any]:
    """Precision is undefined for a class that is never predicted, recall for an absent one."""
    hits, support = int(confusion[place, place]), int(confusion[place].sum())
    predicted = int(confusion[:, place].sum())
    return {
        "class": name,
        "precision": hits / predicted if predicted else None,
        "recall": hits / support if support else None,
        "support": support,
    }


def _origin(model_file: ModelFile) -> dict[str, Any]:
    """Return which epoch of which run was scored, and what had chosen it."""
    best = model_file.best
    return {
        "best_epoch": best["epoch"],
        "selection_metric": best["selection_metric"],
        "selection": best["val_selection"],
        "fingerprint": model_file.fingerprint,
    }


def tabulate_predictions(
    logits: Tensor, label: Tensor, rows: np.ndarray, classes: list[str]
) -> pd.DataFrame:
    """Return one row per prediction: row number, label and predicted class by name, p_<class>.

    Args:
        logits: float32, shape (N, K) or (N, 1).
        label: int64, shape (N,).
        rows: Row numbers in the data set, shape (N,).
        classes: K names. The probabilities of a row are float64 and add up to 1.
    """
    names = np.asarray(classes, dtype=object)
    columns: dict[str, Any] = {
        "row": rows,
        "label": names[label.numpy()],
        "predicted": names[decide(logits).numpy()],
    }
    probability = probabilities(logits).numpy()
    return pd.DataFrame(
        columns | {f"p_{name}": probability[:, k] for k, name in enumerate(classes)}
    )
