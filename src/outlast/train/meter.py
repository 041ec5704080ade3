"""Sums of an epoch, added up on the device in float64 and read once."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

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
# Steps that are added up at once: a small step must not pay for three more kernels. Blocks begin
# at multiples of it, saved or not, so that the order of a sum is that of an undisturbed run.
BLOCK = 64


class Meter:
    """Sums of the current epoch, of this rank.

    :meth:`add` only enqueues work: the number of times that the host waits for the device does
    not depend on the number of steps.
    """

    def __init__(self, distributed: Distributed) -> None:
        """Start at zero."""
        self._distributed = distributed
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64, device=distributed.device)
        self._first_bad = torch.full_like(self._sums[0], math.inf)
        self._steps: list[int] = []  # whose values are pending
        self._pending: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, step: int, sums: Mapping[str, Tensor]) -> None:
        """Add one part of a step: scalars, by names of ``SUMS``; ``loss`` must be among them."""
        if self._steps and step // BLOCK != self._steps[-1] // BLOCK:
            self._flush()
        if self._steps and step == self._steps[-1]:
            for name, value in sums.items():
                self._pending[name][-1] = self._pending[name][-1].double() + value.detach()
            return
        self._steps.append(step)
        for name, value in sums.items():
            self._pending[name].append(value.detach())

    def start_epoch(self) -> None:
        """Forget the last epoch."""
        self._sums.zero_()
        self._first_bad.fill_(math.inf)
        self._clear()

    def _clear(self) -> None:
        self._steps.clear()
        self._pending.clear()

    def _flush(self) -> None:
        """Add up what is pending."""
        self._first_bad = self._find_first_bad()
        for place, name in enumerate(SUMS):
            if values := self._pending.get(name):
                self._sums[place] += torch.stack(values).double().sum()
        self._clear()

    def _find_first_bad(self) -> Tensor:
        """Return the first step whose loss is not finite, infinity if none, on the device."""
        if not self._steps:
            return self._first_bad
        steps = torch.tensor(self._steps, dtype=torch.float64)
        if self._sums.device.type != "cpu":
            steps = steps.pin_memory().to(self._sums.device, non_blocking=True)
        losses = torch.stack(self._pending["loss"])
        return torch.where(losses.isfinite(), math.inf, steps).min().minimum(self._first_bad)

    def totals(self) -> dict[str, float]:
        """Return the sums over all ranks, by name. Every rank must call it."""
        self._flush()
        return dict(zip(SUMS, self._distributed.sum_(self._sums.clone()).tolist(), strict=True))

    def first_non_finite_step(self) -> int | None:
        """Return the first step of this epoch whose loss was not finite, on any rank, or None."""
        first = min(self._distributed.gather(self._find_first_bad().item()))
        return None if math.isinf(first) else int(first)

    def state(self) -> list[dict[str, Any]]:
        """Return what each rank has added up, and the steps that it has not added up yet.

        Neither summed over the ranks nor flushed: both would round otherwise than undisturbed.
        """
        pending = {name: torch.stack(values).tolist() for name, values in self._pending.items()}
        sums = dict(zip(SUMS, self._sums.tolist(), strict=True))
        return self._distributed.gather(
            {"sums": sums, "steps": list(self._steps), "pending": pending}
        )

    def load(self, state: list[dict[str, Any]]) -> None:
        """Continue from :meth:`state`; on another number of ranks, rank 0 takes all of it."""
        world_size, rank = self._distributed.world_size, self._distributed.rank
        if len(state) != world_size:
            total = {name: sum(_total(of_rank, name) for of_rank in state) for name in SUMS}
            nothing = dict.fromkeys(SUMS, 0.0)
            state = [
                {"sums": total if place == 0 else nothing, "steps": [], "pending": {}}
                for place in range(world_size)
            ]
        self.start_epoch()
        own = state[rank]
        self._sums.copy_(torch.tensor([own["sums"][name] for name in SUMS], dtype=torch.float64))
        self._steps = list(own["steps"])
        for name, values in own["pending"].items():
            tensor = torch.tensor(values, dtype=torch.float64, device=self._sums.device)
            self._pending[name] = list(tensor.unbind())


def _total(of_rank: dict[str, Any], name: str) -> float:
    total: float = of_rank["sums"][name] + math.fsum(of_rank["pending"].get(name, ()))
    return total
