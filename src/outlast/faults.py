"""Instants with a name, where a test lets a process die, pause or fail. Without the variable: none.

OUTLAST_FAULT holds one fault or several, read once per process:

    point=fsync at=3 do=SIGKILL to=all; point=batch rank=1 do=SIGSTOP for=2

``point``: where, one of :data:`POINTS`. ``at``: the how-manieth time it is reached there (1), and
``times``: so often from then on (1). ``rank``: of which rank (0). ``do``: a signal; an error of the
file system, such as ENOSPC; or ``sleep``. ``to``: who gets the signal: that ``rank``, ``torchrun``
or ``all``. ``for``: seconds of sleep, or until SIGCONT follows SIGSTOP.

So a kill at an exact instant can be repeated: tests/chaos prints the line to do it with.
"""

import errno
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass

from outlast.processes import children_of

POINTS = {
    "import": "signals are caught, torch is not imported yet",
    "claim": "the run folder is claimed, older claims are not removed yet",
    "beat": "the next sign of life is written, and not in its place yet",
    "resume": "the state is loaded, no step is taken yet",
    "batch": "before a training step",
    "backward": "before the backward pass of a part of the batch",
    "reduce": "before the gradients of the ranks are added",
    "step": "before the optimizer step",
    "validation": "after a batch of validation",
    "epoch": "validated, and not booked yet",
    "snapshot": "before the state is copied",
    "copied": "the state is copied, no file is begun yet",
    "write": "in the middle of a temporary file",
    "fsync": "a temporary file is written, and not on the disk yet",
    "replace": "a temporary file is on the disk, no name has been moved yet",
    "replaced": "the new file has its name, the folder is not on the disk yet",
    "previous": "the new state is safe, the one before has not its second name yet",
    "outputs": "model_best.pt is written, history.json is not",
    "end": "the outputs are written, the attempt is not closed yet",
    "leave": "all is closed, the folder is not given free yet",
}


@dataclass
class Fault:
    """One of OUTLAST_FAULT."""

    point: str
    do: str
    at: int = 1
    times: int = 1
    rank: int = 0
    to: str = "rank"
    for_s: float = 1.0
    reached: int = 0

    def is_due(self) -> bool:
        """Count, and tell whether it is time to act."""
        self.reached += 1
        return self.at <= self.reached < self.at + self.times

    def act(self) -> None:
        """Do it.

        Raises:
            OSError: That is what it does.
        """
        if self.do == "sleep":
            time.sleep(self.for_s)
        elif self.do.startswith("SIG"):
            self._send(signal.Signals[self.do])
        else:
            number = getattr(errno, self.do)
            raise OSError(number, f"{os.strerror(number)} (OUTLAST_FAULT)")

    def _send(self, number: signal.Signals) -> None:
        torchrun, own = os.getppid(), os.getpid()
        if self.to != "rank" and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise ValueError(f"OUTLAST_FAULT: to={self.to} needs a rank that torchrun has started")
        pids = {"rank": [own], "torchrun": [torchrun], "all": [torchrun, *children_of(torchrun)]}
        chosen = sorted(pids[self.to], key=lambda pid: pid == own)  # ourselves last
        if number == signal.SIGSTOP:
            wake = f"sleep {self.for_s}; kill -CONT {' '.join(map(str, chosen))}"
            subprocess.Popen(["sh", "-c", wake], start_new_session=True)
        for pid in chosen:
            os.kill(pid, number)


def parse(text: str) -> list[Fault]:
    """Return the faults that a line describes.

    Raises:
        ValueError: It is no such line.
    """
    parts = [part for part in map(str.strip, text.split(";")) if part]
    try:
        return [_parse_one(part) for part in parts]
    except (ValueError, KeyError) as error:
        raise ValueError(f"OUTLAST_FAULT={text!r}: {error}; points: {', '.join(POINTS)}") from error


def _parse_one(text: str) -> Fault:
    values = dict(word.split("=", 1) for word in text.split())
    fault = Fault(
        point=values["point"],
        do=values["do"],
        at=int(values.get("at", 1)),
        times=int(values.get("times", 1)),
        rank=int(values.get("rank", 0)),
        to=values.get("to", "rank"),
        for_s=float(values.get("for", 1)),
    )
    is_known = fault.do == "sleep" or fault.do in signal.Signals.__members__
    if not is_known and not isinstance(getattr(errno, fault.do, None), int):
        raise ValueError(f"do={fault.do} is no signal, no error and not sleep")
    if fault.point not in POINTS or fault.to not in ("rank", "torchrun", "all"):
        raise ValueError(f"unknown point or to in {text!r}")
    return fault


_LOCK = threading.Lock()
_RANK = int(os.environ.get("RANK", "0"))
_FAULTS = [fault for fault in parse(os.environ.get("OUTLAST_FAULT", "")) if fault.rank == _RANK]


def reach(point: str) -> None:
    """Pass the instant of this name. Costs nothing without OUTLAST_FAULT."""
    for fault in _FAULTS:
        if fault.point == point:
            with _LOCK:  # training, writer and heartbeat pass the same points
                is_due = fault.is_due()
            if is_due:
                fault.act()
