"""Both clippings, against values by hand and against torch."""

import math

import pytest
import torch

from outlast.sections import TrainingSection
from outlast.train.clipping import Clipping

CPU = torch.device("cpu")


def norm_of(gradients: list[torch.Tensor]) -> float:
    """The norm over all of them."""
    return math.sqrt(sum(float(flat.double().square().sum()) for flat in gradients))


def clipped(clipping: Clipping, norm: float) -> float:
    """The norm of a gradient of this norm after clipping."""
    gradients = [torch.full((4,), norm / 4), torch.full((12,), norm / 4, dtype=torch.float64)]
    assert math.isnan(norm) or norm_of(gradients) == pytest.approx(norm)
    clipping.clip(gradients)
    return norm_of(gradients)


def test_a_fixed_norm_is_that_of_torch() -> None:
    """Over all dtypes together; smaller gradients keep their bits."""
    clipping = Clipping(TrainingSection(max_grad_norm=1.5), CPU)
    gradients = [torch.randn(20), torch.randn(7)]
    parameters = [torch.zeros_like(flat, requires_grad=True) for flat in gradients]
    for parameter, flat in zip(parameters, gradients, strict=True):
        parameter.grad = flat.clone()
    torch.nn.utils.clip_grad_norm_(parameters, 1.5)
    clipping.clip(gradients)
    assert norm_of(gradients) == pytest.approx(1.5)
    for parameter, flat in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, flat, rtol=1e-5, atol=1e-7)
    before = [flat.clone() for flat in gradients]
    Clipping(TrainingSection(max_grad_norm=2), CPU).clip(gradients)
    assert all(torch.equal(one, other) for one, other in zip(before, gradients, strict=True))


def test_nothing_is_clipped_by_default() -> None:
    """0 and false: off."""
    assert clipped(Clipping(TrainingSection(), CPU), 1e6) == pytest.approx(1e6)


def test_the_quantile_limit_is_twice_the_median_of_the_last_hundred() -> None:
    """No limit until a hundred norms are known; then the oldest makes room for the newest."""
    clipping = Clipping(TrainingSection(quantile_grad_clip=True), CPU)
    for norm in range(1, 101):
        assert clipped(clipping, float(norm)) == pytest.approx(norm)
    # the limit comes from the norms before: 1..100 have the median 50.5
    assert clipped(clipping, 1000.0) == pytest.approx(101.0)
    # 1 has left and 1000 has come: 2..100 and 1000 have the median 51.5
    assert clipped(clipping, 1000.0) == pytest.approx(103.0)
    assert clipped(clipping, 90.0) == pytest.approx(90.0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_not_stored(bad: float) -> None:
    """It neither counts nor changes the limit, and the gradient is left to the scaler."""
    clipping = Clipping(TrainingSection(quantile_grad_clip=True), CPU)
    for _ in range(99):
        clipped(clipping, 1.0)
    for _ in range(5):
        assert not math.isfinite(clipped(clipping, bad))
    assert clipped(clipping, 50.0) == pytest.approx(50.0), "only 99 norms were known"
    assert clipped(clipping, 50.0) == pytest.approx(2.0)
    assert not math.isfinite(clipped(clipping, bad))
    assert clipped(clipping, 50.0) == pytest.approx(2.0)


def test_both_limits_hold_together() -> None:
    """The smaller one counts."""
    clipping = Clipping(TrainingSection(quantile_grad_clip=True, max_grad_norm=3), CPU)
    for _ in range(100):
        assert clipped(clipping, 10.0) == pytest.approx(3.0)
    for _ in range(60):
        clipped(clipping, 1.0)
    assert clipped(clipping, 10.0) == pytest.approx(2.0)


def test_the_state_continues() -> None:
    """A clipping loaded from another's state has its limit, and its place in the window."""
    section = TrainingSection(quantile_grad_clip=True)
    one, other = Clipping(section, CPU), Clipping(section, CPU)
    for norm in range(1, 131):
        clipped(one, float(norm))
    other.load_state_dict({key: value.clone() for key, value in one.state_dict().items()})
    for norm in (500.0, 7.0, 600.0):
        assert clipped(one, norm) == clipped(other, norm)
