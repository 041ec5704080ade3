"""status.json and attempts.jsonl: what a run is doing, and a line for each attempt behind it.

Neither is a declared output or a `log:`: Snakemake deletes those, or empties them, at a retry.
A killed attempt cannot write its own line; the next one writes it, from the last sign of life.
Nothing here may end a run: on a full disk, what cannot be written is left out.
"""

import contextlib
import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

from outlast import slurm
from outlast.errors import OutlastError
from outlast.files import parse_json, read_json, write_atomically, write_json
from outlast.train.claim import Claim, Unclaimed

STATUS_JSON = "status.json"
ATTEMPTS_JSONL = "attempts.jsonl"
SIGN_OF_LIFE_S = 5.0
_NUMBERS = ("started", "updated", "from_seconds", "kept_seconds", "lost_seconds")
_PLACE = ("from_epoch", "from_step", "epoch", "step")
# of a time since 1970, of seconds, of steps: what is larger is damage, and may break a sum
_MOST = 1e11


class Ledger:
    """Writes for one attempt; only rank 0 has one.

    Attributes:
        attempts: Those that have ended.
        number: Of this one, from 1.
    """

    def __init__(
        self,
        folder: Path,
        claim: Claim | Unclaimed | None = None,
        started: float | None = None,
    ) -> None:
        """Close the book on a killed attempt, if there was one; number this one.

        Args:
            folder: Of the run.
            claim: On it: when that is lost, nothing more is written.
            started: When this attempt did, by ``time.monotonic()``. Default: now.
        """
        self._claim = claim or Unclaimed(folder)
        # by the clock that nobody can set
        self._started = time.monotonic() if started is None else started
        self._written = -math.inf
        self._status_file = folder / STATUS_JSON
        self._attempts_file = folder / ATTEMPTS_JSONL
        self.attempts, self._is_readable = _read_patiently(self._attempts_file)
        last = self._read_status()
        if last is not None and last["state"] == "running":
            self._append({**last, "state": "killed"})
        # not their count: a line may have been lost
        self.number = max((line["attempt"] for line in self.attempts), default=0) + 1
        self._status: dict[str, Any] = {
            "attempt": self.number,
            "state": "running",
            "host": socket.gethostname(),
            "job": slurm.own_job(),
            "pid": os.getpid(),
            "started": time.time() - (time.monotonic() - self._started),
            "updated": time.time(),
            "from_epoch": None,
            "from_step": None,
            "from_seconds": 0.0,
            "fingerprint": None,
            "epoch": None,
            "step": None,
            "kept_seconds": 0.0,
            "lost_seconds": 0.0,
        }
        self._write()

    @property
    def lost_seconds(self) -> float:
        """Seconds of all attempts, this one included, that no state has kept."""
        ended = sum(line["lost_seconds"] for line in self.attempts)
        return float(ended) + self._lost_so_far()

    def _lost_so_far(self) -> float:
        spent = time.monotonic() - self._started
        return max(0.0, spent - float(self._status["kept_seconds"]))

    def begin(self, epoch: int, step: int, seconds: float, fingerprint: str = "") -> None:
        """Note where this attempt starts.

        Args:
            epoch: Epochs finished.
            step: Steps done in the current one.
            seconds: Trained so far, over all attempts.
            fingerprint: Of the recipe, which is that of the state.
        """
        self._status |= {"from_epoch": epoch, "from_step": step, "from_seconds": seconds}
        self._status["fingerprint"] = fingerprint
        self._settle_killed(epoch, step, seconds)
        self.update(epoch, step)

    def _settle_killed(self, epoch: int, step: int, seconds: float) -> None:
        """Count what a killed attempt had saved behind its last sign of life: it is in the state.

        Attempts that ended before they began to train had nothing to save, and those of another
        recipe have saved another state.
        """
        ours = self._status["fingerprint"]
        began = [
            line
            for line in self.attempts
            if line.get("from_epoch") is not None and line.get("fingerprint") == ours
        ]
        if not began or began[-1]["state"] != "killed":
            return
        line = began[-1]
        spent = line["kept_seconds"] + line["lost_seconds"]
        kept = max(0.0, seconds - line["from_seconds"])
        line |= {"kept_seconds": kept, "lost_seconds": max(0.0, spent - kept)}
        if (epoch, step) > (line["epoch"], line["step"]):
            line |= {"epoch": epoch, "step": step}
        self._write_attempts()

    def keep(self, seconds: float) -> None:
        """Note that a state with so many seconds of training is on the disk."""
        self._status["kept_seconds"] = max(0.0, seconds - self._status["from_seconds"])

    def update(self, epoch: int, step: int) -> None:
        """Give a sign of life, at most every few seconds."""
        first = self._status["epoch"] is None
        self._status |= {"epoch": epoch, "step": step}
        if first or time.monotonic() - self._written >= SIGN_OF_LIFE_S:
            self._write()

    def end(self, state: str, reason: str = "") -> None:
        """Close this attempt: completed, interrupted or failed, and why."""
        if self._status["state"] != "running":
            return
        self._status |= {"state": state, "reason": reason}
        self._write()
        self._append(self._status)

    def fail(self, error: BaseException) -> None:
        """Close this attempt with an error, unless it has been closed with a better reason."""
        kind = "" if isinstance(error, OutlastError) else f"{type(error).__name__}: "
        self.end("failed", f"{kind}{error}")

    def _write(self) -> None:
        self._written = time.monotonic()
        self._status |= {"updated": time.time(), "lost_seconds": self._lost_so_far()}
        with contextlib.suppress(OSError):
            write_json(self._status_file, self._status, self._claim.staging)

    def _append(self, line: dict[str, Any]) -> None:
        self.attempts.append(line)
        self._write_attempts()

    def _write_attempts(self) -> None:
        if not self._is_readable:
            return
        # the whole file: a line added behind one that a kill cut off would be lost with it
        text = "".join(json.dumps(attempt) + "\n" for attempt in self.attempts)
        with contextlib.suppress(OSError):
            write_atomically(self._attempts_file, text.encode(), staging=self._claim.staging)

    def _read_status(self) -> dict[str, Any] | None:
        status = _attempt(read_json(self._status_file))
        if status is None:
            return None
        # a kill between the two writes of `end` leaves a closed status without its line
        numbers = {line["attempt"] for line in self.attempts}
        if status["state"] != "running" and status["attempt"] not in numbers:
            self._append(status)
        return status if status["attempt"] not in numbers else None


def read_attempts(folder: Path) -> list[dict[str, Any]]:
    """Return the attempts in a run folder in their order, the one that runs now included."""
    lines, _ = _read_patiently(folder / ATTEMPTS_JSONL)
    now = _attempt(read_json(folder / STATUS_JSON))
    numbers = {line["attempt"] for line in lines}
    return [*lines, now] if now is not None and now["attempt"] not in numbers else lines


def _read_patiently(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines, and whether they could be read: what could not must not be replaced."""
    for pause in (0.1, 0.5, 1.0):
        try:
            return _read_lines(path), True
        except OSError:
            time.sleep(pause)
    return [], False


def _read_lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(errors="replace") if path.is_file() else ""
    lines = [_attempt(parse_json(line)) for line in text.splitlines()]
    return [line for line in lines if line is not None]


def _attempt(line: Any) -> dict[str, Any] | None:
    """Return one attempt, or None for what is none: these files are for people, not for us."""
    if not isinstance(line, dict):
        return None
    place = [line.get(key) for key in _PLACE]
    is_attempt = (
        isinstance(line.get("state"), str)
        and _is_number(line.get("attempt"), int)
        and all(_is_number(line.get(key), int | float) for key in _NUMBERS)
        # who never began to train has none
        and (place == [None] * 4 or all(_is_number(value, int) for value in place))
    )
    plain = {key: value for key, value in line.items() if not isinstance(value, dict | list)}
    return plain if is_attempt else None


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 <= value <= _MOST
