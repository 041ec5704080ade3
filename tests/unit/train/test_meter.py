from typing import Any, TypeVar

import pytest
import torch

from outlast.distributed import Distributed
from outlast.train.meter import SUMS, Meter

T = TypeVar("T")


class Ranks(Distributed):
    """One of several ranks, alone: what it gathers is its own value."""

    def gather(self, value: T) -> list[T]:
        return [value]


def add(meter: Meter, step: int, loss: float, correct: int = 0) -> None:
    """Add one part of a step."""
    meter.add(step, {"loss": torch.tensor(loss), "correct": torch.tensor(correct)})


def sums(loss: float, correct: float = 0.0) -> dict[str, Any]:
    """The state of a rank without pending steps, without heads."""
    values = {**dict.fromkeys(SUMS, 0.0), "loss": loss, "correct": correct}
    return {"sums": values, "steps": [], "pending": {}}


def test_totals_are_sums_over_parts_and_steps() -> None:
    """Losses add up in float64, correct rows are counted exactly."""
    meter = Meter(Distributed())
    for step, part in ((0, 1.25), (0, 2.0), (1, 1e-9), (2, 4.0)):
        add(meter, step, part, 3)
    assert meter.totals()["loss"] == 1.25 + 2.0 + float(torch.tensor(1e-9)) + 4.0
    assert meter.totals()["correct"] == 12
    meter.start_epoch()
    assert not any(meter.totals().values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_first_non_finite_step_is_named(bad: float) -> None:
    """The first step with a NaN or infinite loss, in any of its parts; none at first."""
    meter = Meter(Distributed())
    for step in range(4):
        add(meter, step, 1.0)
    assert meter.first_non_finite() is None
    for part in (1.0, bad, 1.0):
        add(meter, 4, part)
    add(meter, 5, bad)
    assert meter.first_non_finite() == (4, "loss")


@pytest.mark.parametrize("first", [*range(12), 63, 64, 65, 200])
def test_a_long_epoch_still_names_the_first_step(first: int) -> None:
    """Also long after its block was added up, and though all later losses are bad as well."""
    meter = Meter(Distributed())
    for step in range(first + 150):
        # once the loss is NaN, the weights are, and all later losses
        add(meter, step, float("nan") if step >= first else 1.0)
        add(meter, step, 1.0)
    assert meter.first_non_finite() == (first, "loss")


def test_a_single_bad_step_long_ago_is_named() -> None:
    """And forgotten with its epoch."""
    meter = Meter(Distributed())
    for step in range(200):
        add(meter, step, float("inf") if step == 2 else 1.0)
    assert meter.first_non_finite() == (2, "loss")
    meter.totals()
    assert meter.first_non_finite() == (2, "loss")
    meter.start_epoch()
    add(meter, 0, 1.0)
    assert meter.first_non_finite() is None


def test_steps_that_are_missing_or_resumed_are_named_by_their_number() -> None:
    """A rank without a share of some batches, in an attempt that starts at step 7."""
    meter = Meter(Distributed())
    meter.load([sums(3.0, 2.0)])
    for step in (7, 9, 130):
        add(meter, step, float("nan") if step == 9 else 1.0)
    assert meter.first_non_finite() == (9, "loss")
    meter.load([sums(3.0, 2.0)])
    assert meter.first_non_finite() is None


@pytest.mark.parametrize("saved_at", [0, 1, 5, 63, 64, 65, 100, 128, 190])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_sum_that_was_saved_on_its_way_is_the_same_to_the_bit(saved_at: int, parts: int) -> None:
    """Wherever that was: in a block, at its end; and once more soon after."""
    dice = torch.Generator().manual_seed(3)
    losses = torch.rand(200, parts, generator=dice).exp()
    whole, piecewise = Meter(Distributed()), Meter(Distributed())
    for step, row in enumerate(losses):
        if step in (saved_at, saved_at + 7):
            state, piecewise = piecewise.state(), Meter(Distributed())
            piecewise.load(state)
        for loss in row:
            whole.add(step, {"loss": loss, "correct": torch.tensor(step)})
            piecewise.add(step, {"loss": loss, "correct": torch.tensor(step)})
    assert piecewise.totals() == whole.totals()
    assert whole.totals()["loss"] == pytest.approx(float(losses.double().sum()), rel=1e-14)
    assert whole.totals()["correct"] == parts * 199 * 100


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
        meter = Meter(Ranks(rank, world_size))
        meter.load(saved)
        assert meter.state() == [sums(losses[rank], 2 * losses[rank])]


def test_pending_steps_of_another_number_of_ranks_are_counted() -> None:
    """What three ranks had not added up yet is in the total of one."""
    saved = []
    for rank in range(3):
        meter = Meter(Ranks(rank, 3))
        for step in range(70):
            add(meter, step, 2.0**rank, 1)
        saved += meter.state()
    meter = Meter(Distributed())
    meter.load(saved)
    assert (meter.totals()["loss"], meter.totals()["correct"]) == (70 * 7.0, 210)
