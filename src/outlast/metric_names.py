"""Names of selection metrics: which are legal, and what ``tpr_at_fpr:0.01`` asks for.

No torch here: the config checks them, training computes them, the report puts them into words.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Any

PLAIN_METRICS = ("auto", "val_auc", "val_f1", "val_acc", "val_loss")


@dataclass(frozen=True)
class _Kind:
    """One kind of operating point.

    Attributes:
        excluded: End of [0, 1] at which every model would score 1, so that nothing is selected.
        example: A legal metric of this kind.
        words: What a figure calls it, up to the number.
    """

    excluded: float
    example: str
    words: str

    @property
    def range(self) -> str:
        return "at least 0 and below 1" if self.excluded == 1 else "above 0 and at most 1"


_KINDS = {
    "tpr_at_fpr": _Kind(1, "tpr_at_fpr:0.01", "TPR at FPR"),
    "callable_at_precision": _Kind(0, "callable_at_precision:0.99", "callable at precision"),
    "precision_at_recall": _Kind(0, "precision_at_recall:0.9", "precision at recall"),
    "recall_at_precision": _Kind(0, "recall_at_precision:0.9", "recall at precision"),
}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

EXAMPLES = (*PLAIN_METRICS, *(kind.example for kind in _KINDS.values()))
PATTERN = f"^(?:{'|'.join(PLAIN_METRICS)}|(?:{'|'.join(_KINDS)}):{_NUMBER})$"


@dataclass(frozen=True)
class OperatingPoint:
    """What a parametric metric asks for: ``recall_at_precision:0.9`` is a name and a target."""

    name: str
    target: float


def operating_point(metric: str) -> OperatingPoint | None:
    """Split a metric that :func:`check_metric` has returned; None for one without a number."""
    name, colon, number = metric.partition(":")
    return OperatingPoint(name, float(number)) if colon else None


def metric_words(metric: str) -> str | None:
    """Return a parametric metric in words, ``TPR at FPR 0.01``; None for any other text."""
    name, colon, number = metric.partition(":")
    return f"{_KINDS[name].words} {number}" if colon and name in _KINDS else None


def check_metric(value: Any) -> str:
    """Return a selection metric in its one spelling: ``tpr_at_fpr:1e-2`` as ``tpr_at_fpr:0.01``.

    The name is part of a run's recipe, and two spellings of a number are no other metric.

    Raises:
        ValueError: No such metric, or its number is out of range; says what to write instead.
    """
    if not isinstance(value, str):
        raise ValueError(f"write it as one word, such as val_f1 or {_KINDS['tpr_at_fpr'].example}")
    if value in PLAIN_METRICS:
        return value
    name, _, number = value.partition(":")
    if name not in _KINDS:
        raise ValueError(_advice(name, number))
    if (target := _legal_number(name, number)) is None:
        kind = _KINDS[name]
        raise ValueError(f"the number after the colon must be {kind.range}, as in {kind.example}")
    return f"{name}:{target}"


def _legal_number(name: str, number: str) -> str | None:
    """Return the shortest spelling of a target that is legal for this kind, else None."""
    if not re.fullmatch(_NUMBER, number):
        return None
    target = float(number)
    if target > 1 or target == _KINDS[name].excluded:
        return None
    return repr(target).removesuffix(".0")


def _advice(name: str, number: str) -> str:
    """Name the legal metric that is nearest to an unknown one, with the number if that fits."""
    near = difflib.get_close_matches(name.strip().lower(), [*PLAIN_METRICS, *_KINDS], 1, 0.5)
    if not near:
        legal = [*PLAIN_METRICS, *(f"{known}:NUMBER" for known in _KINDS)]
        return f"legal here: {', '.join(legal)}"
    if near[0] in PLAIN_METRICS:
        return f"did you mean {near[0]}?"
    target = _legal_number(near[0], number.strip())
    return f"did you mean {f'{near[0]}:{target}' if target else _KINDS[near[0]].example}?"
