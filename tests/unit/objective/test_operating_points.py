import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from outlast.metric_names import EXAMPLES, OperatingPoint, operating_point
from outlast.objective.operating_points import (
    callable_at_precision,
    measure_at,
    precision_at_recall,
    recall_at_precision,
    tpr_at_fpr,
)
from outlast.objective.scores import score

Values = NDArray[np.float64]
Truth = NDArray[np.bool_]
Measure = Callable[[torch.Tensor, torch.Tensor, float], float | None]
ALL: list[Measure] = [tpr_at_fpr, precision_at_recall, recall_at_precision, callable_at_precision]
TARGETS = [0.0, 0.01, 0.1, 0.25, 1 / 3, 0.5, 0.6, 2 / 3, 0.75, 0.9, 0.99, 1.0]


def cases(count: int = 400) -> list[tuple[Values, Truth]]:
    """Small splits of both classes, most with many ties; some values are exactly 0."""
    dice = np.random.default_rng(7)
    found = []
    while len(found) < count:
        rows = int(dice.integers(2, 13))
        actual = dice.random(rows) < dice.choice([0.2, 0.5, 0.8])
        if actual.any() and not actual.all():
            grid = dice.choice([1, 2, 1000])
            signal = dice.normal(0, 1, rows) + dice.choice([0, 2]) * (actual - 0.5)
            found.append((np.round(signal * grid) / grid, actual))
    return found


def slow_tpr(value: Values, actual: Truth, fpr: float) -> float:
    """Walk along the ROC curve, point by point, and stop where it passes ``fpr``."""
    before, best = (0.0, 0.0), 0.0
    for threshold in sorted(set(value.tolist()), reverse=True):
        rates = [0.0, 0.0]
        for row in range(len(value)):
            if value[row] >= threshold:
                rates[int(actual[row])] += 1
        point = rates[0] / (~actual).sum(), rates[1] / actual.sum()
        if point[0] <= fpr:
            best = point[1]
        else:
            if before[0] <= fpr:
                slope = (point[1] - before[1]) / (point[0] - before[0])
                best = before[1] + slope * (fpr - before[0])
            break
        before = point
    return best


def slow_points(value: Values, actual: Truth) -> list[tuple[float, float]]:
    """Precision and recall at each threshold, counted row by row."""
    points = []
    for threshold in value:
        hits = sum(1 for v, a in zip(value, actual, strict=True) if v >= threshold and a)
        accepted = sum(1 for v in value if v >= threshold)
        points.append((hits / accepted, hits / sum(actual)))
    return points


def slow_precision(value: Values, actual: Truth, recall: float) -> float:
    """The best precision where recall is enough."""
    return max(p for p, r in slow_points(value, actual) if r >= recall)


def slow_recall(value: Values, actual: Truth, precision: float) -> float:
    """The best recall where precision is enough; 0 if nowhere."""
    return max([r for p, r in slow_points(value, actual) if p >= precision], default=0.0)


def slow_callable(value: Values, actual: Truth, precision: float) -> float:
    """Call one row after another by |p - 0.5|, and look up only where the next is less sure."""
    chance = 1 / (1 + np.exp(-value))
    sure = np.round(np.abs(chance - 0.5), 12)
    order = sorted(range(len(value)), key=lambda row: -sure[row])
    right, best = 0, 0.0
    for called, row in enumerate(order, start=1):
        right += int((chance[row] > 0.5) == actual[row])
        last = called == len(order) or sure[order[called]] < sure[row]
        if last and right / called >= precision:
            best = called / len(order)
    return best


@pytest.mark.parametrize(
    ("fast", "slow"),
    list(zip(ALL, [slow_tpr, slow_precision, slow_recall, slow_callable], strict=True)),
)
def test_each_equals_a_count_row_by_row(
    fast: Measure, slow: Callable[[Values, Truth, float], float]
) -> None:
    """On 400 small splits with ties, at twelve targets each, shuffled or not."""
    for value, actual in cases():
        for target in TARGETS:
            found = fast(torch.from_numpy(value), torch.from_numpy(actual), target)
            assert found == pytest.approx(slow(value, actual, target), abs=1e-12), (
                value,
                actual,
                target,
            )


@pytest.mark.parametrize("decimals", [1, 6])
def test_tpr_is_that_of_scikit_learns_roc_curve(decimals: int) -> None:
    """Linear interpolation in the reference's curve, on a large split with ties and without."""
    dice = np.random.default_rng(decimals)
    actual = dice.random(5000) < 0.3
    value = np.round(dice.normal(0, 1, 5000) + actual, decimals)
    alarms, rate, _ = roc_curve(actual, value)
    for target in TARGETS:
        reference = np.interp(target, alarms, rate)
        found = tpr_at_fpr(torch.from_numpy(value), torch.from_numpy(actual), target)
        assert found == pytest.approx(reference, abs=1e-12)


@pytest.mark.parametrize("decimals", [1, 6])
def test_precision_and_recall_are_those_of_scikit_learns_curve(decimals: int) -> None:
    """The largest of one where the other is enough; its made-up point (1, 0) is left out."""
    dice = np.random.default_rng(decimals)
    actual = dice.random(5000) < 0.3
    value = np.round(dice.normal(0, 1, 5000) + actual, decimals)
    precision, recall, _ = precision_recall_curve(actual, value)
    precision, recall = precision[:-1], recall[:-1]
    for target in TARGETS:
        rows = torch.from_numpy(value), torch.from_numpy(actual)
        expected = precision[recall >= target].max()
        assert precision_at_recall(*rows, target) == pytest.approx(expected, abs=1e-12)
        expected = recall[precision >= target].max(initial=0.0)
        assert recall_at_precision(*rows, target) == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    """Ten rows, most confident first right, and 9 of 10 reach the number 0.9."""
    logit = torch.tensor([5.0, -4.5, 4.0, -3.5, 3.0, -2.5, 2.0, -1.5, 1.0, 0.5])
    actual = logit > 0
    actual[9] = False
    assert callable_at_precision(logit, actual, 0.9) == 1.0
    assert callable_at_precision(logit, actual, 0.91) == 0.9
    # 5 positives above the one false alarm; 5 negatives in all
    assert tpr_at_fpr(logit, actual, 0.0) == 1.0
    assert tpr_at_fpr(torch.tensor([3.0, 2, 2, 1]), torch.tensor([1, 1, 0, 0]) > 0, 0.25) == 0.75
    assert precision_at_recall(logit, actual, 1.0) == 1.0


def test_a_negative_call_is_a_call() -> None:
    """Confidence has no sign: the sure negatives are called before the doubtful positives."""
    logit = torch.tensor([-9.0, -8.0, 1.0, 2.0])
    actual = torch.tensor([False, False, False, True])
    assert callable_at_precision(logit, actual, 1.0) == 0.75


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize(
    ("value", "actual"),
    [
        ([1.0, 2.0, 3.0], [True, True, True]),
        ([1.0, 2.0, 3.0], [False, False, False]),
        ([1.0], [True]),
        ([-1.0], [False]),
        ([], []),
        ([1.0, float("nan"), -1.0], [True, True, False]),
    ],
)
def test_undefined_is_none(measure: Measure, value: list[float], actual: list[bool]) -> None:
    """One class only, a single row, no row, a NaN: None, not 0, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure(torch.tensor(value), torch.tensor(actual, dtype=torch.bool), 0.5)
    assert found is None


def test_all_tied() -> None:
    """One value for all rows is one point: chance for the ROC, the prevalence for precision."""
    value, actual = torch.full((4,), 2.0), torch.tensor([True, True, True, False])
    assert tpr_at_fpr(value, actual, 0.3) == pytest.approx(0.3)
    assert precision_at_recall(value, actual, 0.1) == 0.75
    assert recall_at_precision(value, actual, 0.75) == 1.0
    assert recall_at_precision(value, actual, 0.76) == 0.0
    assert callable_at_precision(value, actual, 0.75) == 1.0
    assert callable_at_precision(value, actual, 0.76) == 0.0
    # a logit of 0 decides for class 0, as everywhere
    assert callable_at_precision(value * 0, actual, 0.25) == 1.0
    assert callable_at_precision(value * 0, actual, 0.26) == 0.0


@pytest.mark.parametrize("measure", ALL)
def test_saturated_and_infinite_logits_keep_their_order(measure: Measure) -> None:
    """Logits whose probability rounds to 1 or 0 are ranked; infinity is a logit like another."""
    value = torch.tensor([50.0, 60.0, 70.0, torch.inf, -70.0, -50.0, -60.0, -torch.inf])
    actual = torch.tensor([False, True, True, True, False, True, False, False])
    steps = torch.tensor([2.0, 3.0, 4.0, 5.0, -4.0, -2.0, -3.0, -5.0])
    assert value.double().sigmoid().unique().numel() < 8
    for target in TARGETS:
        assert measure(value, actual, target) == measure(steps, actual, target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("measure", ALL)
def test_any_float_dtype(measure: Measure, dtype: torch.dtype) -> None:
    """Half precision is ranked as the same numbers in float64, counted without rounding."""
    dice = np.random.default_rng(0)
    actual = torch.from_numpy(dice.random(3000) < 0.5)
    value = torch.from_numpy(dice.normal(0, 1, 3000)).to(dtype) + actual
    for target in (0.03, 0.6, 0.9):
        assert measure(value, actual, target) == measure(value.double(), actual, target)


@pytest.mark.parametrize("metric", [name for name in EXAMPLES if ":" in name])
def test_score_holds_the_metric_that_was_asked_for(metric: str) -> None:
    """Under its name, from one logit or two; nothing for a metric without a number."""
    dice = torch.Generator().manual_seed(0)
    label = torch.arange(200) % 2
    logits = torch.randn(200, 1, generator=dice) + label.reshape(-1, 1)
    point = operating_point(metric)
    assert point is not None
    value = measure_at(point, logits.reshape(-1), label == 1)
    assert value is not None
    two = torch.cat([torch.zeros(200, 1), logits], dim=1)
    for shape in (logits, logits.reshape(-1), two):
        assert score(shape, label, metric).points == {metric: value}
    assert score(logits, label, "val_auc").points == score(logits, label).points == {}


def test_each_name_is_its_own_measure() -> None:
    """The four names of the config stand for the four functions."""
    value, actual = (torch.from_numpy(part) for part in cases(30)[29])
    for measure in ALL:
        point = OperatingPoint(measure.__name__, 0.6)
        assert measure_at(point, value, actual) == measure(value, actual, 0.6)
