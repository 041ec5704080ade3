"""Sums of an epoch, added up on the device in float64 and read once."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from outlast.data.batches import to_device
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
# of what may become infinite or NaN in a step: in the order in which one leads to the other
KINDS = ("loss", "gradient")
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
        # first bad step of each of KINDS
        self._first_bad = torch.full_like(self._sums[: len(KINDS)], math.inf)
        self._probes: list[tuple[int, Tensor]] = []
        self._steps: list[int] = []  # whose values are pending
        self._pending: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, step: int, sums: Mapping[str, Tensor]) -> None:
        """Add one part of a step: scalars, by names of ``SUMS``; ``loss`` must be among them."""
        self._open(step)
        if self._steps and step == self._steps[-1]:
            for name, value in sums.items():
                self._pending[name][-1] = self._pending[name][-1].double() + value.detach()
            return
        self._steps.append(step)
        for name, value in sums.items():
            self._pending[name].append(value.detach())

    def watch(self, step: int, probe: Tensor) -> None:
        """Note a scalar that is finite where the gradient of a step is."""
        self._open(step)
        self._probes.append((step, probe))

    def _open(self, step: int) -> None:
        """Close the block before, if ``step`` belongs to a new one."""
        last = self._steps[-1:] + [number for number, _ in self._probes[-1:]]
        if last and step // BLOCK != max(last) // BLOCK:
            self._flush()

    def start_epoch(self) -> None:
        """Forget the last epoch."""
        self._sums.zero_()
        self._first_bad.fill_(math.inf)
        self._clear()

    def _clear(self) -> None:
        self._steps.clear()
        self._probes.clear()
        self._pending.clear()

    def _flush(self) -> None:
        """Add up what is pending."""
        self._first_bad = self._find_first_bad()
        for place, name in enumerate(SUMS):
            if values := self._pending.get(name):
                self._sums[place] += torch.stack(values).double().sum()
        self._clear()

    def _find_first_bad(self) -> Tensor:
        """Return the first step of each kind that is not finite, else infinity; on the device."""
        losses = list(zip(self._steps, self._pending.get("loss", ()), strict=True))
        found = torch.stack([self._first_of(numbers) for numbers in (losses, self._probes)])
        return found.minimum(self._first_bad)

    def _first_of(self, numbers: Sequence[tuple[int, Tensor]]) -> Tensor:
        if not numbers:
            return torch.full_like(self._sums[0], math.inf)
        steps = torch.tensor([step for step, _ in numbers], dtype=torch.float64)
        steps = to_device(steps, self._sums.device)
        finite = torch.stack([number for _, number in numbers]).isfinite()
        return torch.where(finite, math.inf, steps).min()

    def totals(self) -> dict[str, float]:
        """Return the sums over all ranks, by name. Every rank must call it."""
        self._flush()
        return dict(zip(SUMS, self._distributed.sum_(self._sums.clone()).tolist(), strict=True))

    def first_non_finite(self) -> tuple[int, str] | None:
        """Return the first step of this epoch, on any rank, where something was not finite.

        Returns:
            The step, and which of ``KINDS``, the first of them; None if all was well.
        """
        ranks = self._distributed.gather(self._find_first_bad().tolist())
        first = [min(steps) for steps in zip(*ranks, strict=True)]
        step, kind = min((step, place) for place, step in enumerate(first))
        return None if math.isinf(step) else (int(step), KINDS[kind])

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
