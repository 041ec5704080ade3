"""Sums of an epoch, kept on the device in float64 and read once."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from outlast.distributed import Distributed

# what a step may add up; without a head its sums stay 0
SUMS = (
    "loss",
    "correct",
    "adversary_loss",
    "adversary_correct",
    "adversary_known",
    "regression_loss",
    "regression_valid",
)
# Losses kept one by one, to name the step of a non-finite one; a longer epoch goes in laps.
RECENT = 65536


class Meter:
    """Sums of the current epoch, of this rank.

    :meth:`add` only enqueues work: the number of times that the host waits for the device does
    not depend on the number of steps.
    """

    def __init__(self, distributed: Distributed, num_steps: int) -> None:
        """Start at zero."""
        self._distributed = distributed
        device = distributed.device
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self._views = dict(zip(SUMS, self._sums.unbind(), strict=True))
        self._recent = torch.zeros(min(num_steps, RECENT), dtype=torch.float64, device=device)
        self._slots = torch.arange(len(self._recent), dtype=torch.float64, device=device)
        self._lap, self._bad_before = 0, torch.full_like(self._sums[0], math.inf)

    def add(self, step: int, sums: Mapping[str, Tensor]) -> None:
        """Add one part of a step: scalars, by names of ``SUMS``; ``loss`` must be among them."""
        lap, slot = divmod(step, len(self._recent))
        if lap != self._lap:
            self._start_lap(lap)
        for name, value in sums.items():
            self._views[name].add_(value.detach())
        self._recent[slot].add_(sums["loss"].detach())

    def start_epoch(self) -> None:
        """Forget the last epoch."""
        self._sums.zero_()
        self._start_lap(0)
        self._bad_before.fill_(math.inf)

    def _start_lap(self, lap: int) -> None:
        self._bad_before = self._first_bad()
        self._recent.zero_()
        self._lap = lap

    def _first_bad(self) -> Tensor:
        """Return the first step whose loss is not finite, infinity if none, on the device."""
        steps = self._slots + self._lap * len(self._recent)
        return torch.where(self._recent.isfinite(), math.inf, steps).min().minimum(self._bad_before)

    def totals(self) -> dict[str, float]:
        """Return the sums over all ranks, by name. Every rank must call it."""
        return dict(zip(SUMS, self._distributed.sum_(self._sums.clone()).tolist(), strict=True))

    def first_non_finite_step(self) -> int | None:
        """Return the first step of this epoch whose loss was not finite, on any rank, or None."""
        first = min(self._distributed.gather(self._first_bad().item()))
        return None if math.isinf(first) else int(first)

    def state(self) -> list[list[float]]:
        """Return the sums of each rank: added up, they would round otherwise than undisturbed."""
        return self._distributed.gather(self._sums.tolist())

    def load(self, state: list[list[float]]) -> None:
        """Continue from :meth:`state`; on another number of ranks, rank 0 takes all of it."""
        world_size, rank = self._distributed.world_size, self._distributed.rank
        if len(state) != world_size:
            total = [sum(column) for column in zip(*state, strict=True)]
            state = [total] + [[0.0] * len(SUMS)] * (world_size - 1)
        self.start_epoch()
        self._sums.copy_(torch.tensor(state[rank], dtype=torch.float64))
