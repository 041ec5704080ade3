"""What a classifier of two classes is worth at the one threshold that will be used.

All four see the ranking alone: give them logits, since probabilities saturate and tie. Shares are
divided before they are compared with a target: 9 / 10 and the text ``0.9`` are the same float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from outlast.metric_names import OperatingPoint


def tpr_at_fpr(value: Tensor, actual: Tensor, fpr: float) -> float | None:
    """Return the true positive rate (0 to 1) of the ROC curve at a false positive rate.

    The curve starts at (0, 0) and has one point per distinct value (rows that tie are accepted
    together); linear between its points, and at a vertical step its upper end (Fawcett 2006, "An
    introduction to ROC analysis").

    Args:
        value: Any float dtype, shape (rows,); higher means more likely positive.
        actual: bool, shape (rows,).
        fpr: 0 to 1.

    Returns:
        None: one class only (or no rows), or a NaN among the values.
    """
    if _undefined(value, actual):
        return None
    hits, false_alarms = _accepted(value, actual)
    start = hits.new_zeros(1)
    rate = torch.cat([start, hits / hits[-1]])
    alarm_rate = torch.cat([start, false_alarms / false_alarms[-1]])
    left = int((alarm_rate <= fpr).sum()) - 1
    if left == len(rate) - 1:
        return float(rate[-1])
    share = (fpr - alarm_rate[left]) / (alarm_rate[left + 1] - alarm_rate[left])
    return float(rate[left] + share * (rate[left + 1] - rate[left]))


def precision_at_recall(value: Tensor, actual: Tensor, recall: float) -> float | None:
    """Return the largest precision (0 to 1) among thresholds with at least this recall.

    Thresholds are the distinct values, without interpolation (Davis and Goadrich 2006: between
    two points precision is not linear).

    Args:
        value: Any float dtype, shape (rows,); higher means more likely positive.
        actual: bool, shape (rows,).
        recall: 0 to 1.

    Returns:
        None: one class only (or no rows), or a NaN among the values.
    """
    if _undefined(value, actual):
        return None
    hits, false_alarms = _accepted(value, actual)
    # the lowest threshold has recall 1, so at least one is left
    reached = hits / hits[-1] >= recall
    return float((hits / (hits + false_alarms))[reached].max())


def recall_at_precision(value: Tensor, actual: Tensor, precision: float) -> float | None:
    """Return the largest recall (0 to 1) among thresholds with at least this precision.

    Args:
        value: Any float dtype, shape (rows,); higher means more likely positive.
        actual: bool, shape (rows,).
        precision: 0 to 1.

    Returns:
        0.0 where no threshold is that precise. None: one class only (or no rows), or a NaN.
    """
    if _undefined(value, actual):
        return None
    hits, false_alarms = _accepted(value, actual)
    reached = hits / (hits + false_alarms) >= precision
    return _largest((hits / hits[-1])[reached])


def callable_at_precision(logit: Tensor, actual: Tensor, precision: float) -> float | None:
    """Return the largest share of rows (0 to 1) that can be called with at least this accuracy.

    Rows are called by falling confidence ``|p - 0.5|``, which orders them as ``|logit|`` does and
    does not saturate; the call is class 1 above 0. Rows of equal confidence are called together.
    One minus the result is the share that a person has to look at (risk and coverage: El-Yaniv
    and Wiener 2010, "On the foundations of noise-free selective classification").

    Args:
        logit: Of p, the probability of class 1; any float dtype, shape (rows,).
        actual: bool, shape (rows,).
        precision: Accuracy of the rows that are called, 0 to 1.

    Returns:
        0.0 where not even the most confident calls are that accurate. None: one class only (or
        no rows), or a NaN.
    """
    if _undefined(logit, actual):
        return None
    right, wrong = _accepted(logit.abs(), (logit > 0) == actual)
    called = right + wrong
    reached = right / called >= precision
    return _largest((called / len(actual))[reached])


_MEASURES: dict[str, Callable[[Tensor, Tensor, float], float | None]] = {
    "tpr_at_fpr": tpr_at_fpr,
    "callable_at_precision": callable_at_precision,
    "precision_at_recall": precision_at_recall,
    "recall_at_precision": recall_at_precision,
}


def measure_at(point: OperatingPoint, logit: Tensor, actual: Tensor) -> float | None:
    """Return what ``point`` asks for, 0 to 1, higher is better; None where it is undefined.

    Args:
        point: Of a metric that the config has checked.
        logit: Any float dtype, shape (rows,); above 0 is a call for class 1.
        actual: bool, shape (rows,): the rows of class 1.
    """
    return _MEASURES[point.name](logit, actual, point.target)


def _undefined(value: Tensor, actual: Tensor) -> bool:
    positives = int(actual.sum())
    return positives in (0, len(actual)) or bool(value.isnan().any())


def _accepted(value: Tensor, actual: Tensor) -> tuple[Tensor, Tensor]:
    """Count rows at or above each distinct value, highest first: ``actual`` ones, and others.

    Float64, which is exact for counts, shape (distinct values,).
    """
    distinct, group = value.double().unique(return_inverse=True)
    hits, others = (
        torch.bincount(group[rows], minlength=len(distinct)).flip(0).cumsum(0).double()
        for rows in (actual, ~actual)
    )
    return hits, others


def _largest(shares: Tensor) -> float:
    return float(shares.max()) if len(shares) else 0.0
