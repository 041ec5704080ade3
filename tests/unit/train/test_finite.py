"""Neither NaN nor infinity gets past, and no finite number is taken for one."""

import math

import pytest
import torch

from outlast.train.finite import all_finite

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 12_345, 99_999])
def test_one_bad_number_is_found(dtype: torch.dtype, bad: float, place: int) -> None:
    """Among a hundred thousand good ones, wherever it is, in either tensor."""
    good, weight = torch.ones(7), torch.randn(100_000).to(dtype)
    assert all_finite([good, weight])
    weight[place] = bad
    assert not all_finite([good, weight])
    assert not all_finite([weight, good])


def test_infinities_of_both_signs_do_not_cancel() -> None:
    """Within a tensor and between two."""
    assert not all_finite([torch.tensor([math.inf, -math.inf])])
    assert not all_finite([torch.tensor([math.inf]), torch.tensor([-math.inf])])


@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_are_finite(dtype: torch.dtype, sign: int) -> None:
    """Though their sum is not; and a bad one among them is found."""
    weight = torch.full((1000,), sign * torch.finfo(dtype).max, dtype=dtype)
    assert all_finite([weight, torch.ones(2)])
    weight[7] = math.nan
    assert not all_finite([weight, torch.ones(2)])


def test_empty_and_scalar_weights() -> None:
    """No numbers are finite numbers; dtypes can be mixed, and gradients be asked for."""
    weights = [torch.zeros(0, dtype=dtype) for dtype in DTYPES]
    weights += [torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, dtype=torch.float64)]
    assert all_finite(weights)
    assert not all_finite([*weights, torch.tensor(math.nan)])
