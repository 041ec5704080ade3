"""Augmentation: random by (seed, epoch, row), whatever else is going on (story 47)."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from outlast.data.augment import Augment, refuse_idle_augment, uniforms
from outlast.errors import ConfigError
from outlast.sections import AugmentSection

ROWS = np.array([3, 11, 4, 100, 0, 7])
SIGNAL = torch.randn(6, 2, 20, generator=torch.Generator().manual_seed(0))
TABLE = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
EVERYTHING = {
    "jitter": 0.1,
    "min_scale": 0.8,
    "max_scale": 1.3,
    "shift": 3,
    "time_mask": {"width": 4, "count": 2},
}


def augment(seed: int = 0, **keys: Any) -> Augment:
    """With these settings."""
    return Augment(AugmentSection.model_validate(keys), seed)


def test_numbers_are_uniform_and_independent() -> None:
    """Kolmogorov-Smirnov, and no correlation between rows, indices or keys."""
    rows = torch.arange(2000)
    numbers = uniforms(12345, rows, 50)
    assert numbers.dtype == torch.float32
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert stats.kstest(numbers.flatten().numpy(), "uniform").pvalue > 0.01
    other = uniforms(12346, rows, 50)
    pairs = [
        (numbers[:-1].flatten(), numbers[1:].flatten()),
        (numbers[:, :-1].flatten(), numbers[:, 1:].flatten()),
        (numbers.flatten(), other.flatten()),
        (numbers[:-1, 1:].flatten(), numbers[1:, :-1].flatten()),
    ]
    for one, two in pairs:
        assert abs(float(np.corrcoef(one.numpy(), two.numpy())[0, 1])) < 0.012
    assert len(numbers.flatten().unique()) > 0.99 * numbers.numel()


@pytest.mark.parametrize("place", range(6))
def test_a_row_is_changed_alike_in_any_batch(place: int) -> None:
    """Alone, in another order, in a part: the same bits; of each input by itself."""
    change = augment(**EVERYTHING)
    whole = change([SIGNAL, TABLE], ROWS, 2)
    order = np.roll(np.arange(6), place)
    rolled = change([SIGNAL[order], TABLE[order]], ROWS[order], 2)
    alone = change([SIGNAL[place : place + 1], TABLE[place : place + 1]], ROWS[[place]], 2)
    for together, turned, single in zip(whole, rolled, alone, strict=True):
        assert torch.equal(together[order], turned)
        assert torch.equal(together[place], single[0])


def test_epochs_seeds_rows_and_inputs_have_their_own() -> None:
    """Nothing repeats where something is different."""
    change = augment(jitter=1.0)
    zeros = torch.zeros(6, 40)
    first = change([zeros, zeros], ROWS, 0)
    assert torch.equal(first[0], change([zeros, zeros], ROWS, 0)[0])
    others = [
        first[1],
        change([zeros], ROWS, 1)[0],
        augment(seed=1, jitter=1.0)([zeros], ROWS, 0)[0],
        change([zeros], ROWS + 1, 0)[0],
    ]
    for other in others:
        assert not torch.isclose(first[0], other).any(dim=1).all()
        assert float((first[0] == other).float().mean()) < 0.01
    assert len({tuple(row.tolist()) for row in first[0]}) == 6


def test_jitter_is_normal_with_its_standard_deviation() -> None:
    """Around the values as they were."""
    rows = np.arange(500)
    noise = augment(jitter=0.3)([torch.full((500, 100), 2.0)], rows, 5)[0] - 2
    assert stats.kstest(noise.flatten().numpy() / 0.3, "norm").pvalue > 0.01
    assert bool(noise.isfinite().all())


def test_scale_is_one_number_per_row() -> None:
    """Between its two ends."""
    rows = np.arange(1000)
    scaled = augment(min_scale=0.5, max_scale=2.0)([torch.ones(1000, 2, 7)], rows, 0)[0]
    factor = scaled[:, 0, 0]
    assert torch.equal(scaled, factor[:, None, None].expand_as(scaled))
    assert stats.kstest((factor.numpy() - 0.5) / 1.5, "uniform").pvalue > 0.01


def test_shift_moves_along_the_last_axis() -> None:
    """By each number of positions from -3 to 3, all channels alike, zeros coming in."""
    rows = np.arange(700)
    moved = augment(shift=3)([SIGNAL[:1].expand(700, 2, 20)], rows, 0)[0]
    counts = dict.fromkeys(range(-3, 4), 0)
    for row in moved:
        matches = []
        for steps in counts:
            wanted = torch.zeros(2, 20)
            if steps >= 0:
                wanted[:, steps:] = SIGNAL[0, :, : 20 - steps]
            else:
                wanted[:, :steps] = SIGNAL[0, :, -steps:]
            matches += [steps] * torch.equal(row, wanted)
        assert len(matches) == 1
        counts[matches[0]] += 1
    assert min(counts.values()) > 60


def test_masks_are_stretches_of_zeros() -> None:
    """All channels alike; two of width 4 hide 4 to 8 of 20 positions; nothing else changes."""
    rows = np.arange(400)
    masked = augment(time_mask={"width": 4, "count": 2})([SIGNAL[:1].expand(400, 2, 20)], rows, 0)[
        0
    ]
    hidden = masked == 0
    assert torch.equal(hidden[:, 0], hidden[:, 1])
    counts = hidden[:, 0].sum(1)
    assert int(counts.min()) == 4
    assert int(counts.max()) == 8
    assert torch.equal(masked[~hidden], SIGNAL[:1].expand(400, 2, 20)[~hidden])
    assert bool(hidden[:, 0].any(0).all()), "every position is hidden in some row"


def test_images_are_changed_along_their_width_and_tables_not_at_all() -> None:
    """Shift and mask need positions; a row of features has none."""
    keys = {"shift": 2, "time_mask": {"width": 2, "count": 1}}
    image = torch.ones(6, 1, 5, 8)
    changed, table = augment(**keys)([image, TABLE], ROWS, 0)
    assert torch.equal(table, TABLE)
    assert not torch.equal(changed, image)
    assert torch.equal(changed, changed[:, :, :1].expand_as(changed)), "whole columns"


def test_nothing_is_touched_by_default_or_without_rows() -> None:
    """The very tensors come back."""
    assert augment()([SIGNAL], ROWS, 0)[0] is SIGNAL
    empty = SIGNAL[:0]
    assert augment(**EVERYTHING)([empty], ROWS[:0], 0)[0] is empty


@pytest.mark.parametrize(
    ("keys", "shapes", "said"),
    [
        ({"shift": 2}, {"x": (5,)}, "training.augment.shift: 2 needs an input with channels"),
        ({"time_mask": {"count": 1}}, {"x": ()}, r"time_mask\.width: 1 needs an input with"),
        ({"shift": 20}, {"x": (2, 20)}, "training.augment.shift: 20 leaves nothing of an input"),
        ({"time_mask": {"count": 1, "width": 30}}, {"x": (2, 20), "y": (3,)}, "width: 30 leaves"),
    ],
)
def test_what_would_change_nothing_or_everything_is_refused(
    keys: dict[str, Any], shapes: dict[str, tuple[int, ...]], said: str
) -> None:
    """A key without effect is a mistake, not a wish."""
    with pytest.raises(ConfigError, match=said):
        refuse_idle_augment(AugmentSection.model_validate(keys), shapes)
    refuse_idle_augment(AugmentSection(jitter=0.1), shapes)
    refuse_idle_augment(AugmentSection.model_validate(keys), {"x": (1, 40), "y": (3,)})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_draws_the_numbers_of_the_host() -> None:
    """Integers wrap around alike everywhere."""
    rows = torch.arange(100)
    assert torch.equal(uniforms(7, rows, 9), uniforms(7, rows.cuda(), 9).cpu())
