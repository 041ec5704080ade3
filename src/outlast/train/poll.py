"""At a step boundary: is it time to save, or to stop? All ranks get the same answer."""

import time
from dataclasses import dataclass

import torch

from outlast.distributed import Distributed
from outlast.train.interrupt import Interrupt

# With several ranks each question is a collective. Asked this often, it costs nothing.
ASK_EVERY_S = 0.05


@dataclass(frozen=True)
class Answer:
    """What to do now. ``stop`` implies ``save``."""

    save: bool = False
    stop: bool = False


class Poll:
    """Agrees on saving and stopping. Rank 0's clock decides when to save; any rank may stop.

    Every rank must call :meth:`ask` at the same boundaries. Between two questions all ranks
    count the same number of boundaries down, a number that rank 0 proposed in the last one.
    """

    def __init__(
        self, distributed: Distributed, interrupt: Interrupt, every_seconds: float
    ) -> None:
        """Start the clock.

        Args:
            distributed: The ranks.
            interrupt: This rank's flag.
            every_seconds: Between periodic saves; 0 saves at every boundary.
        """
        self._distributed, self._interrupt = distributed, interrupt
        self._every_seconds = every_seconds
        self._countdown = self._interval = 1
        self._last_save = self._last_question = time.monotonic()

    def ask(self) -> Answer:
        """Return the answer for this boundary."""
        if self._distributed.world_size == 1:
            stop = self._interrupt.received is not None
            return Answer(stop or self._is_save_due(), stop)
        self._countdown -= 1
        if self._countdown > 0:
            return Answer()
        is_main = self._distributed.is_main
        votes = torch.tensor(
            [
                self._interrupt.received is not None,
                is_main and self._is_save_due(),
                self._propose_interval() if is_main else 0,
            ],
            dtype=torch.int64,
        )
        stop, save, self._interval = self._distributed.sum_(votes).tolist()
        self._countdown = self._interval
        return Answer(bool(stop or save), bool(stop))

    def restart_clock(self) -> None:
        """Note that a save has just ended."""
        self._last_save = time.monotonic()

    def _is_save_due(self) -> bool:
        return time.monotonic() - self._last_save >= self._every_seconds

    def _propose_interval(self) -> int:
        now = time.monotonic()
        per_boundary = (now - self._last_question) / self._interval
        self._last_question = now
        if self._every_seconds == 0:
            return 1
        # at most double, so that one odd measurement cannot make the ranks deaf for long
        return max(1, min(int(ASK_EVERY_S / max(per_boundary, 1e-6)), 2 * self._interval))
