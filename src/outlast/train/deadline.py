"""The end of the job, known beforehand: on most clusters no signal comes before SIGKILL.

Asked once, at the start: `OUTLAST_DEADLINE` (seconds since 1970, or `none`) or
`SLURM_JOB_END_TIME`, else `squeue`. From then on a monotonic clock counts: the other may be set.
"""

import contextlib
import logging
import os
import time

from outlast import slurm

log = logging.getLogger("outlast")

DEADLINE = "OUTLAST_DEADLINE"
# to train until SIGKILL, where SLURM names an end that is none
NO_END = "none"
# for what comes behind the save: the ranks and torchrun leave, Snakemake takes note
LEAVE_S = 10.0
# a step or a save may take so much longer than the longest so far
SLACK = 2.0
# 2001 and 2200: seconds from now, or milliseconds, are neither within
_EARLIEST, _LATEST = 1e9, 7.26e9


class Deadline:
    """Tells when it is time to save and leave."""

    def __init__(self, seconds_left: float | None = None) -> None:
        """Start the clock; None: there is no end."""
        self._end = None if seconds_left is None else time.monotonic() + seconds_left
        self._longest_save = self._longest_step = 0.0
        self._last_boundary: float | None = None

    @classmethod
    def of_this_job(cls) -> "Deadline":
        """Ask the environment, then SLURM."""
        if os.environ.get(DEADLINE) == NO_END:
            return cls()
        end = _from_environment()
        if end is None and (job := slurm.own_job()):
            end = slurm.end_of(job)
        return cls(None if end is None else end - time.time())

    @property
    def seconds_left(self) -> float | None:
        """Until the job ends; None without an end."""
        return None if self._end is None else self._end - time.monotonic()

    def shortage(self) -> str:
        """Return the line for an attempt that has time for one step only."""
        end = time.localtime(time.time() + (self.seconds_left or 0.0))
        return (
            f"the deadline is {time.strftime('%Y-%m-%d %H:%M:%S', end)}: time for one step in this"
            f" attempt; ask for more walltime, or correct {DEADLINE}"
        )

    def note_save(self, seconds: float) -> None:
        """Learn how long a save takes."""
        self._longest_save = max(self._longest_save, seconds)

    def is_too_near_to_wait(self) -> bool:
        """Tell whether who waits for another attempt must leave."""
        left = self.seconds_left
        # between two looks he asks for the job of the other
        return left is not None and left < LEAVE_S + slurm.TIMEOUT_S

    def is_near(self) -> bool:
        """Tell, at a step boundary, whether the next one may be too late."""
        if self._end is None:
            return False
        now = time.monotonic()
        if self._last_boundary is not None:
            self._longest_step = max(self._longest_step, now - self._last_boundary)
        self._last_boundary = now
        needed = SLACK * (self._longest_step + self._longest_save) + LEAVE_S
        return self._end - now < needed


def _from_environment() -> float | None:
    for name in (DEADLINE, "SLURM_JOB_END_TIME"):
        if text := os.environ.get(name):
            with contextlib.suppress(ValueError):
                if _EARLIEST < (end := float(text)) < _LATEST:
                    return end
            log.warning("%s: %r is not allowed; seconds since 1970 are needed", name, text)
    return None
