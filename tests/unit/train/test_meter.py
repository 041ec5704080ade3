from typing import TypeVar

import pytest
import torch

from outlast.distributed import Distributed
from outlast.train import meter as meter_module
from outlast.train.meter import SUMS, Meter

T = TypeVar("T")


class Ranks(Distributed):
    """One of several ranks, alone: what it gathers is its own value."""

    def gather(self, value: T) -> list[T]:
        return [value]


def add(meter: Meter, step: int, loss: float, correct: int = 0) -> None:
    """Add one part of a step."""
    meter.add(step, {"loss": torch.tensor(loss), "correct": torch.tensor(correct)})


def sums(loss: float, correct: float = 0.0) -> list[float]:
    """The sums of a rank, without heads."""
    return [loss, correct] + [0.0] * (len(SUMS) - 2)


def test_totals_are_sums_over_parts_and_steps() -> None:
    """Losses add up in float64, correct rows are counted exactly."""
    meter = Meter(Distributed(), 3)
    for step, part in ((0, 1.25), (0, 2.0), (1, 1e-9), (2, 4.0)):
        add(meter, step, part, 3)
    assert meter.totals()["loss"] == 1.25 + 2.0 + float(torch.tensor(1e-9)) + 4.0
    assert meter.totals()["correct"] == 12
    meter.start_epoch()
    assert not any(meter.totals().values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_first_non_finite_step_is_named(bad: float) -> None:
    """The first step with a NaN or infinite loss, in any of its parts; none at first."""
    meter = Meter(Distributed(), 10)
    for step in range(4):
        add(meter, step, 1.0)
    assert meter.first_non_finite_step() is None
    for part in (1.0, bad, 1.0):
        add(meter, 4, part)
    add(meter, 5, bad)
    assert meter.first_non_finite_step() == 4


@pytest.mark.parametrize("first", range(12))
def test_a_full_ring_still_names_the_first_step(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more steps than losses are kept, the step named is the first bad one all the same."""
    monkeypatch.setattr(meter_module, "RECENT", 4)
    meter = Meter(Distributed(), 12)
    for step in range(12):
        # once the loss is NaN, the weights are, and all later losses
        add(meter, step, float("nan") if step >= first else 1.0)
        add(meter, step, 1.0)
    assert meter.first_non_finite_step() == first


def test_a_single_bad_step_long_ago_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is no longer kept one by one is not mistaken for a later one."""
    monkeypatch.setattr(meter_module, "RECENT", 4)
    meter = Meter(Distributed(), 50)
    for step in range(50):
        add(meter, step, float("inf") if step == 2 else 1.0)
    assert meter.first_non_finite_step() == 2
    meter.start_epoch()
    add(meter, 0, 1.0)
    assert meter.first_non_finite_step() is None


def test_steps_of_a_resumed_epoch_are_named_by_their_number() -> None:
    """An attempt that starts at step 7 of a ring of 4 names step 9 as 9."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter_module, "RECENT", 4)
        meter = Meter(Distributed(), 12)
        meter.load([sums(3.0, 2.0)])
        for step in (7, 8, 9):
            add(meter, step, float("nan") if step == 9 else 1.0)
        assert meter.first_non_finite_step() == 9


def test_state_and_load_are_exact() -> None:
    """A meter loaded from the state of another has its totals to the bit."""
    meter, other = Meter(Distributed(), 5), Meter(Distributed(), 5)
    for step in range(5):
        add(meter, step, 0.1 * step, step)
    other.load(meter.state())
    assert other.totals() == meter.totals()


@pytest.mark.parametrize(
    ("world_size", "losses"),
    [
        (3, [1.0, 4.0, 16.0]),  # one rank per rank
        (2, [21.0, 0.0]),  # rank 0 takes all of it
        (1, [21.0]),
        (4, [21.0, 0.0, 0.0, 0.0]),
    ],
)
def test_sums_of_another_number_of_ranks_load(world_size: int, losses: list[float]) -> None:
    """Three ranks' sums continue on as many ranks exactly, on other numbers with equal total."""
    saved = [sums(loss, 2 * loss) for loss in (1.0, 4.0, 16.0)]
    for rank in range(world_size):
        meter = Meter(Ranks(rank, world_size), 5)
        meter.load(saved)
        assert meter.state() == [sums(losses[rank], 2 * losses[rank])]
