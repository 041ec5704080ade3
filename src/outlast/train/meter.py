"""Sums of an epoch, kept on the device in float64 and read once."""

import torch
from torch import Tensor

from outlast.distributed import Distributed

# Losses kept one by one, to name the step of a non-finite one. Beyond it, the oldest go.
RECENT = 65536


class Meter:
    """Main loss and correct rows of the current epoch, of this rank.

    :meth:`add` only enqueues work: the number of times that the host waits for the device does
    not depend on the number of steps.
    """

    def __init__(self, distributed: Distributed, num_steps: int) -> None:
        """Start at zero."""
        self._distributed = distributed
        device = distributed.device
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._recent = torch.zeros(min(num_steps, RECENT), dtype=torch.float64, device=device)

    def add(self, step: int, loss_sum: Tensor, correct: Tensor) -> None:
        """Add one part of a step: its summed main loss and number of correct rows, scalars."""
        loss_sum = loss_sum.detach()
        self._sums.add_(torch.stack((loss_sum, correct)))
        self._recent[step % len(self._recent)].add_(loss_sum)

    def start_epoch(self) -> None:
        """Forget the last epoch."""
        self._sums.zero_()
        self._recent.zero_()

    def totals(self) -> tuple[float, int]:
        """Return summed loss and correct rows over all ranks. Every rank must call it."""
        loss, correct = self._distributed.sum_(self._sums.clone()).tolist()
        return loss, int(correct)

    def first_non_finite_step(self, steps_done: int) -> int | None:
        """Return the first step of this epoch whose loss was not finite, on any rank, or None."""
        bad = (~self._recent.isfinite()).nonzero().flatten().tolist()
        size = len(self._recent)
        oldest = max(0, steps_done - size)
        steps = [oldest + (slot - oldest) % size for slot in bad]
        found = [step for steps in self._distributed.gather(steps) for step in steps]
        return min(found, default=None)

    def state(self) -> list[list[float]]:
        """Return the sums of each rank: added up, they would round otherwise than undisturbed."""
        return self._distributed.gather(self._sums.tolist())

    def load(self, state: list[list[float]]) -> None:
        """Continue from :meth:`state`; on another number of ranks, rank 0 takes all of it."""
        world_size, rank = self._distributed.world_size, self._distributed.rank
        if len(state) != world_size:
            total = [sum(column) for column in zip(*state, strict=True)]
            state = [total] + [[0.0, 0.0]] * (world_size - 1)
        self.start_epoch()
        self._sums.copy_(torch.tensor(state[rank], dtype=torch.float64))
