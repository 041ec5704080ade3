"""At a step boundary: is it time to save, or to stop? All ranks get the same answer."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from outlast.distributed import Distributed
from outlast.train.deadline import Deadline
from outlast.train.interrupt import Interrupt

# With several ranks each question is a collective. Asked this often, it costs nothing; and however
# quick the steps were, the next may be slow: a signal or a deadline must not wait for many.
ASK_EVERY_S, MOST_BOUNDARIES = 0.05, 16
# Periodic saves stretch their interval, so that training waits for copies for no more than this
# share of the time, and that a slow disk is not busy with us all the time.
COPY_SHARE, WRITE_SHARE = 0.005, 0.5
# The median of so many saves tells how long one takes: a hiccup is no reason to save more rarely.
REMEMBERED = 3
# From one save to the next the interval grows at most so many times, and in all to so many times
# `every_seconds`, or to so many seconds where that is more: nobody wants to lose an hour.
GROWTH, MOST_TIMES, MOST_S = 2, 10, 600.0


@dataclass(frozen=True)
class Answer:
    """What to do now. To stop implies to save.

    Attributes:
        save: The state, now.
        stop: Why to leave, or None.
    """

    save: bool = False
    stop: str | None = None


class Poll:
    """Agrees on saving and stopping. Rank 0's clock decides when; a signal to any rank stops all.

    Every rank must call :meth:`ask` at the same boundaries. Between two questions all ranks
    count the same number of boundaries down, a number that rank 0 proposed in the last one.
    """

    def __init__(
        self,
        distributed: Distributed,
        interrupt: Interrupt,
        every_seconds: float,
        deadline: Deadline | None = None,
        is_writing: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the clock.

        Args:
            distributed: The ranks.
            interrupt: This rank's flag.
            every_seconds: Between periodic saves; 0 saves at every boundary.
            deadline: The end of the job, on rank 0.
            is_writing: Tells whether the last save is still on its way; then none is due.
        """
        self._distributed, self._interrupt = distributed, interrupt
        self._deadline, self._is_writing = deadline or Deadline(), is_writing
        self._every_seconds = every_seconds
        self._countdown = self._interval = 1
        # zeros: a single save, the first above all, tells nothing yet
        self._copies = deque([0.0] * REMEMBERED, REMEMBERED)
        self._writes = deque([0.0] * REMEMBERED, REMEMBERED)
        self._most_seconds, self._stall = every_seconds, 0.0
        self._has_saved = False
        self._last_save = self._last_question = time.monotonic()

    def ask(self) -> Answer:
        """Return the answer for this boundary."""
        if self._distributed.world_size == 1:
            stop = self._why(self._interrupt.received is not None, self._deadline.is_near())
            return Answer(bool(stop) or self._is_save_due(), stop)
        self._countdown -= 1
        if self._countdown > 0:
            return Answer()
        is_main = self._distributed.is_main
        votes = torch.tensor(
            [
                self._interrupt.received is not None,
                is_main and self._deadline.is_near(),
                is_main and self._is_save_due(),
                self._propose_interval() if is_main else 0,
            ],
            dtype=torch.int64,
        )
        signals, is_late, save, self._interval = self._distributed.sum_(votes).tolist()
        self._countdown = self._interval
        stop = self._why(signals > 0, is_late > 0)
        return Answer(bool(stop or save), stop)

    def expect_other_steps(self) -> None:
        """Ask at the next boundary: an epoch or a validation begins, of another speed."""
        self._countdown = self._interval = 1
        self._last_question = time.monotonic()

    def hasten(self) -> None:
        """Save as soon as the last save is on the disk."""
        self._last_save = -math.inf

    def _why(self, is_signalled: bool, is_late: bool) -> str | None:
        if is_signalled:
            received = self._interrupt.received
            return received.name if received else "signal on another rank"
        return "the walltime is near" if is_late else None

    def note_copy(self, seconds: float, stall: float) -> None:
        """Note that a state has just been copied.

        Args:
            seconds: What the copy took.
            stall: What the whole save took of the training, with the checks and with waiting for
                the writer and for other ranks: the deadline must leave room for that.
        """
        self._most_seconds = GROWTH * self._save_interval()
        self._last_save, self._has_saved = time.monotonic(), True
        self._copies.append(seconds)
        self._stall = stall

    def note_write(self, seconds: float) -> None:
        """Note how long a state took to the disk."""
        self._writes.append(seconds)
        self._deadline.note_save(self._stall + seconds)

    def _is_save_due(self) -> bool:
        if self._every_seconds == 0:
            return True
        if self._deadline.seconds_left is not None and not self._has_saved:
            return True  # at once: how long it takes tells when to leave
        is_time = time.monotonic() - self._last_save >= self._save_interval()
        return is_time and not self._is_writing()

    def _save_interval(self) -> float:
        """Return the seconds from one periodic save to the next, as things are now."""
        wanted = max(median(self._copies) / COPY_SHARE, median(self._writes) / WRITE_SHARE)
        most = max(MOST_TIMES * self._every_seconds, MOST_S)
        return max(self._every_seconds, min(wanted, self._most_seconds, most))

    def _propose_interval(self) -> int:
        now = time.monotonic()
        per_boundary = (now - self._last_question) / self._interval
        self._last_question = now
        if self._every_seconds == 0:
            return 1
        # at most double, so that one odd measurement cannot make the ranks deaf for long
        most = min(MOST_BOUNDARIES, 2 * self._interval)
        return max(1, min(int(ASK_EVERY_S / max(per_boundary, 1e-6)), most))
