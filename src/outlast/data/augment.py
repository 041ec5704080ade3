"""Random changes of training rows: a function of (seed, epoch, row), and of nothing else.

Not of the rank, the place in the batch, the part of an accumulation or the attempt: a row is
changed alike wherever and whenever it is trained, and otherwise in the next epoch. No generator
could do that at this speed, so the random numbers are a hash of their coordinates.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outlast.data.batches import to_device
from outlast.data.sampling import Rows
from outlast.errors import ConfigError
from outlast.sections import AugmentSection

# streams of random numbers, one per use
JITTER_RADIUS, JITTER_ANGLE, SCALE, SHIFT, MASK = range(5)


class Augment:
    """Changes the inputs of training batches on their device."""

    def __init__(self, section: AugmentSection, seed: int) -> None:
        """Keep the settings and the seed of the run."""
        self._section, self._seed = section, seed
        self.is_active = section != AugmentSection()

    def __call__(self, inputs: list[Tensor], rows: Rows, epoch: int) -> list[Tensor]:
        """Return changed float32 inputs.

        Args:
            inputs: (n, ...) each, normalized.
            rows: Row numbers in the data set, (n,).
            epoch: From 0.
        """
        if not self.is_active or len(rows) == 0:
            return inputs
        number = to_device(torch.from_numpy(rows.copy()), inputs[0].device)
        return [self._change(array, number, epoch, place) for place, array in enumerate(inputs)]

    def _change(self, array: Tensor, number: Tensor, epoch: int, place: int) -> Tensor:
        section, shape = self._section, array.shape
        flat = array.reshape(len(array), -1)

        def uniform(stream: int, count: int) -> Tensor:
            key = ((self._seed * 1_000_003 + epoch) * 31 + place) * 31 + stream
            return uniforms(key, number, count)

        low, high = section.min_scale, section.max_scale
        if low != 1 or high != 1:
            flat = flat * (low + (high - low) * uniform(SCALE, 1))
        if section.jitter:
            width = flat.shape[1]
            # Box and Muller 1958; 1 - u is never 0
            radius = (-2 * (1 - uniform(JITTER_RADIUS, width)).log()).sqrt()
            angle = 2 * math.pi * uniform(JITTER_ANGLE, width)
            flat = flat + section.jitter * radius * angle.cos()
        array = flat.reshape(shape)
        if array.ndim < 3:
            return array
        if section.shift:
            steps = (uniform(SHIFT, 1) * (2 * section.shift + 1)).long() - section.shift
            array = _rolled(array, steps[:, 0])
        if section.time_mask.count:
            starts = uniform(MASK, section.time_mask.count)
            array = _masked(array, starts, section.time_mask.width)
        return array


def refuse_idle_augment(section: AugmentSection, row_shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse shifts and masks that would change nothing, or leave nothing.

    Raises:
        ConfigError: No input has positions along a last axis, or too few of them.
    """
    lengths = [shape[-1] for shape in row_shapes.values() if len(shape) > 1]
    wanted = {"shift": section.shift}
    if section.time_mask.count:
        wanted["time_mask.width"] = section.time_mask.width
    problems = []
    for key, value in wanted.items():
        if value and not lengths:
            problems.append(
                f"training.augment.{key}: {value} needs an input with channels and positions, and"
                " each row of these is one list of values; remove the key"
            )
        elif value and value >= min(lengths):
            problems.append(
                f"training.augment.{key}: {value} leaves nothing of an input of {min(lengths)}"
                " positions; choose a smaller number"
            )
    if problems:
        raise ConfigError(problems)


def uniforms(key: int, rows: Tensor, count: int) -> Tensor:
    """Return float32 numbers in [0, 1), shape (rows, count): a hash of (key, row, index).

    The finalizer of SplitMix64 (Steele, Lea and Flood 2014), twice, on int64, whose
    multiplication wraps around on every device.
    """
    index = torch.arange(count, dtype=torch.int64, device=rows.device)
    state = _mix(_mix(rows.to(torch.int64) + _wrapped(key * 0x9E3779B97F4A7C15))[:, None] + index)
    # the upper 24 bits: what a float32 holds
    return ((state >> 40) & 0xFFFFFF).to(torch.float32) / 2**24


def _mix(value: Tensor) -> Tensor:
    value = value + _wrapped(0x9E3779B97F4A7C15)
    value = (value ^ _shifted(value, 30)) * _wrapped(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _wrapped(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift right without the sign, which int64 would draw in."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _wrapped(number: int) -> int:
    """Return a Python integer as the int64 of the same low 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _rolled(array: Tensor, steps: Tensor) -> Tensor:
    """Shift each row along its last axis, zeros coming in."""
    length = array.shape[-1]
    source = torch.arange(length, device=array.device) - steps[:, None]
    inside = (source >= 0) & (source < length)
    view = (len(array), *[1] * (array.ndim - 2), length)
    index = source.clamp(0, length - 1).reshape(view).expand(array.shape)
    return array.gather(-1, index) * inside.reshape(view)


def _masked(array: Tensor, starts: Tensor, width: int) -> Tensor:
    """Put zeros on stretches of the last axis (Park et al. 2019, SpecAugment)."""
    length = array.shape[-1]
    first = (starts * max(1, length - width + 1)).long()
    place = torch.arange(length, device=array.device)
    hidden = ((place >= first[..., None]) & (place < first[..., None] + width)).any(1)
    return array.masked_fill(hidden.reshape(len(array), *[1] * (array.ndim - 2), length), 0.0)
