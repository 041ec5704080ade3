from typing import Literal

import pytest
import torch

from outlast.objective.losses import class_weights


def test_none_means_no_weights() -> None:
    """`none` gives None, and no tensor of ones to multiply by."""
    assert class_weights("none", [3, 1]) is None


@pytest.mark.parametrize(
    ("kind", "counts", "expected"),
    [
        ("auto", [30, 10], [1, 3]),
        ("auto", [10, 40], [1, 0.25]),
        # 100 rows, 4 classes: sqrt(25 / n)
        ("auto", [4, 16, 25, 55], [2.5, 1.25, 1, (25 / 55) ** 0.5]),
        # the absent class counts as a class: 48 rows, 3 classes, sqrt(16 / n)
        ("auto", [0, 16, 32], [1, 1, 0.5**0.5]),
        ("auto", [0, 10], [1, 1]),
        ("auto", [10, 0], [1, 1]),
        ([0.5, 2, 0], [1, 1, 1], [0.5, 2, 0]),
    ],
)
def test_weights_by_hand(
    kind: Literal["none", "auto"] | list[float], counts: list[int], expected: list[float]
) -> None:
    """`auto` balances as written down, an absent class weighs 1, a list is taken as it is."""
    weights = class_weights(kind, counts)
    assert weights is not None
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx(expected, rel=1e-6)


def test_a_list_has_one_weight_per_class() -> None:
    """A list of another length is our own mistake by then, and is caught."""
    with pytest.raises(AssertionError, match="one weight per class"):
        class_weights([1.0, 2.0], [1, 1, 1])
