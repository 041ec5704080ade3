"""What predictions are worth: accuracy, F1, AUROC. Once per split, in float64, on the host.

Our own and not scikit-learn's: importing that costs every rank 1.6 s, and undefined values must
be None here, never 0 and never a warning. The tests hold them equal to scikit-learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outlast.metric_names import operating_point
from outlast.objective.objective import decide
from outlast.objective.operating_points import measure_at


@dataclass(frozen=True)
class Scores:
    """Metrics of one split. None: undefined: a class that it needs is absent, or a logit is NaN.

    ``points`` holds the parametric metric that was asked for under its name, or nothing.
    """

    accuracy: float | None
    f1: float | None
    auc: float | None
    points: Mapping[str, float | None] = field(default_factory=dict)


def score(logits: Tensor, label: Tensor, metric: str = "auto") -> Scores:
    """Score the predictions of a whole split.

    Two classes: threshold 0.5, F1 and AUROC of class 1. More: macro F1 and macro one-vs-rest
    AUROC, over the classes that are present in ``label``.

    Args:
        logits: Shape (rows, classes), (rows, 1) or (rows,); at least one row.
        label: int64, shape (rows,).
        metric: A parametric selection metric such as ``tpr_at_fpr:0.01``, for two classes only,
            is computed too; any other adds nothing.
    """
    logits, label = logits.cpu(), label.cpu()
    points: dict[str, float | None] = {}
    if bool(logits.isnan().any()):  # which decides for the first class, and would be right at times
        return Scores(None, None, None, {metric: None} if operating_point(metric) else {})
    predicted = decide(logits)
    probability = probabilities(logits)
    if probability.shape[1] == 2:
        # the logit and not the probability: float64 saturates too, order of logits does not
        margin = logits.reshape(-1) if logits.numel() == len(label) else logits[:, 1] - logits[:, 0]
        f1, auc = f1_score(predicted == 1, label == 1), auroc(margin, label == 1)
        if point := operating_point(metric):
            points[metric] = measure_at(point, margin, label == 1)
    else:
        present = [int(index) for index in label.unique()]
        f1 = _mean([f1_score(predicted == index, label == index) for index in present])
        auc = _mean([auroc(probability[:, index], label == index) for index in present])
    return Scores(float((predicted == label).double().mean()), f1, auc, points)


def probabilities(logits: Tensor) -> Tensor:
    """Return float64 class probabilities, shape (rows, classes); one logit becomes two columns."""
    logits = logits.float().double()
    if logits.ndim == 1 or logits.shape[1] == 1:
        positive = logits.reshape(-1, 1)
        return torch.cat([torch.sigmoid(-positive), torch.sigmoid(positive)], dim=1)
    return logits.softmax(dim=1)


def f1_score(predicted: Tensor, actual: Tensor) -> float | None:
    """Return 2 TP / (2 TP + FP + FN) of two boolean vectors; None when nothing is positive."""
    hits = int((predicted & actual).sum())
    total = int(predicted.sum()) + int(actual.sum())
    return 2 * hits / total if total else None


def auroc(value: Tensor, actual: Tensor) -> float | None:
    """Return the area under the ROC curve: P(positive above negative), ties count half.

    From the rank sum (Mann and Whitney 1947). None with one class only, or with NaN values.

    Args:
        value: Any float dtype, shape (rows,); higher means more likely positive.
        actual: bool, shape (rows,).
    """
    positives = int(actual.sum())
    negatives = len(actual) - positives
    if positives == 0 or negatives == 0 or bool(value.isnan().any()):
        return None
    _, group, size = value.double().unique(return_inverse=True, return_counts=True)
    # mean rank of each group of ties, from 1
    rank = size.cumsum(0).double() - (size.double() - 1) / 2
    rank_sum = float(rank[group][actual].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None
