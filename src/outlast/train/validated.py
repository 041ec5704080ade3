"""The outputs of a validation so far: what a stop within it must not cost again."""

import time
from typing import Any

import torch
from torch import Tensor

from outlast.data.sampling import Rows, batch_of, cut, num_steps
from outlast.distributed import Distributed


class Validated:
    """One rank's part of a validation. A live part of the run, as the meter of an epoch is.

    Unpadded shares: their sizes differ by one row at most, and with few rows some are empty.

    Attributes:
        steps: Done, on every rank alike.
        num_steps: Of a whole validation.
        seconds: Spent on it, over all attempts.
        network: What it had made of the network in an earlier attempt, as in ``Held.changes``.
    """

    def __init__(self, rows: Rows, batch_size: int, distributed: Distributed) -> None:
        """Nothing is done yet.

        Args:
            rows: Of the validation split; each rank has a share.
            batch_size: Of each rank.
            distributed: The ranks.
        """
        self._distributed, self._batch_size = distributed, batch_size
        world_size = distributed.world_size
        self._shares = [cut(rows, world_size, rank) for rank in range(world_size)]
        self.num_steps = num_steps(max(map(len, self._shares)), batch_size)
        self.clear()

    def clear(self) -> None:
        """Forget it: it is at its end, or begins anew."""
        self.steps, self.seconds = 0, 0.0
        self.network: dict[str, Any] = {}
        # made once, with a place for every row of this rank: no copy of all of them at the end
        self._outputs: Tensor | None = None
        self._since: float | None = None

    def start(self) -> None:
        """Count the seconds from now."""
        self._since = time.perf_counter()

    def read(self) -> float:
        """Book the time until now, and return all of it."""
        now = time.perf_counter()
        self.seconds += now - (now if self._since is None else self._since)
        self._since = now
        return self.seconds

    def next_rows(self) -> Rows:
        """Return the rows of this rank in the next step; maybe none."""
        return batch_of(self._shares[self._distributed.rank], self.steps, self._batch_size)

    def add(self, outputs: Tensor | None) -> None:
        """Take the next step, with its float32 outputs (rows, outputs); None: it has no rows."""
        if outputs is not None:
            if self._outputs is None:
                size = len(self._shares[self._distributed.rank]), outputs.shape[1]
                self._outputs = outputs.new_empty(size)
            first = self.steps * self._batch_size
            place = self._outputs[first : first + len(outputs)]
            place.copy_(outputs.view_as(place))  # the view refuses another width
        self.steps += 1
        self.read()

    def gather(self) -> Tensor:
        """Return the outputs so far of all ranks, rank after rank, on the host. Collective."""
        own = self._outputs
        # a rank without a row has not seen how wide they are; with few rows, that is rank 0
        width = max(self._distributed.gather(0 if own is None else own.shape[1]))
        sizes = self._sizes(self.steps)
        if own is None:
            own = torch.empty(0, width)
        return self._distributed.gather_rows(own[: sizes[self._distributed.rank]], sizes)

    def state(self, changes: dict[str, Any] | None) -> dict[str, Any]:
        """Return what a state file must hold; nothing where it begins anew. Collective.

        Args:
            changes: What it has made of this rank's network. Each rank has its own, and buffers
                may be large: they are not gathered, and several ranks begin anew.
        """
        goes_on = changes is not None and (not changes or self._distributed.world_size == 1)
        if self.steps == 0 or not all(self._distributed.gather(goes_on)):
            return {}
        return {
            "ranks": self._distributed.world_size,
            "steps": self.steps,
            "seconds": self.seconds,
            "outputs": self.gather(),
            "network": changes,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from :meth:`state`, each rank with its own; begin anew on other ranks."""
        self.clear()
        if not self.can_load(saved):
            return
        self.steps, self.seconds = saved["steps"], saved["seconds"]
        self.network = saved["network"]
        sizes, rank, outputs = self._sizes(self.steps), self._distributed.rank, saved["outputs"]
        if sizes[rank]:
            size = len(self._shares[rank]), outputs.shape[1]
            self._outputs = torch.empty(size, device=self._distributed.device)
            first = sum(sizes[:rank])
            self._outputs[: sizes[rank]] = outputs[first : first + sizes[rank]]

    def can_load(self, saved: dict[str, Any]) -> bool:
        """Tell whether it is the beginning of this validation, on as many ranks."""
        return (
            bool(saved)
            and saved["ranks"] == self._distributed.world_size
            and 0 < saved["steps"] <= self.num_steps
            and len(saved["outputs"]) == sum(self._sizes(saved["steps"]))
        )

    def _sizes(self, steps: int) -> list[int]:
        """Return the rows of each rank in so many steps."""
        return [min(len(share), steps * self._batch_size) for share in self._shares]


def problem_of(saved: dict[str, Any]) -> str | None:
    """Tell what makes this no state of a validation, for one that came from a file."""
    if not saved:
        return None
    kinds = {"ranks": int, "steps": int, "seconds": float, "outputs": Tensor, "network": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(saved.get(name), kind)]
    if wrong or saved["outputs"].dim() != 2 or saved["outputs"].dtype != torch.float32:
        return f"validation has no {', '.join(wrong) or 'float32 outputs'}"
    return None
