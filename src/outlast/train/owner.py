"""The owner of a run folder: what his claim says of him, and whether he lives."""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from outlast import slurm
from outlast.processes import start_of

ASK_SLURM_EVERY_S = 10.0


class Watch:
    """Tells whether an owner lives, from what it knows of him and from his beats."""

    def __init__(self, expires_s: float) -> None:
        """Start the clock; so long without a beat, an owner counts as dead."""
        self._expires_s = expires_s
        self._beat: tuple[Any, Any] = (None, None)
        self._since = time.monotonic()
        self._asked, self._ended = -ASK_SLURM_EVERY_S, False

    def judge(self, owner: dict[str, Any]) -> str | None:
        """Return who lives, or None for an owner who has left or died."""
        if owner.get("released"):
            return None
        now, beat = time.monotonic(), (owner.get("token"), owner.get("beat"))
        if beat != self._beat:  # an unreadable claim has none, and expires as well
            self._beat, self._since = beat, now
        if now - self._since > self._expires_s or _is_dead_here(owner):
            return None
        if now - self._asked >= ASK_SLURM_EVERY_S:
            self._asked, self._ended = now, _has_ended(owner)
        return None if self._ended else describe(owner)


def this_process() -> dict[str, Any]:
    """Return what a claim says of its owner."""
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "pid": os.getpid(),
        "process": start_of(os.getpid()),
        "job": slurm.own_job(),
        "cluster": slurm.own_cluster(),
    }


def machine() -> str:
    """Name this machine since its boot, and the namespace that process ids count in."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _is_dead_here(owner: dict[str, Any]) -> bool:
    """Tell whether the owner was a process of this very machine, and is gone."""
    here, pid = machine(), owner.get("pid")
    if not here or owner.get("machine") != here or not isinstance(pid, int):
        return False
    return start_of(pid) != owner.get("process")


def _has_ended(owner: dict[str, Any]) -> bool:
    """Ask SLURM for the job of the owner; a later step of our own job may have followed it."""
    job = str(owner.get("job") or "")
    if owner.get("cluster") != slurm.own_cluster():  # which counts jobs of its own
        return False
    return job.isdigit() and job != slurm.own_job() and slurm.has_ended(job)


def describe(owner: dict[str, Any]) -> str:
    """Name an owner for people."""
    if "pid" not in owner:
        return "another attempt"
    job = f", job {owner['job']}" if owner.get("job") else ""
    return f"process {owner.get('pid')} on {owner.get('host')}{job}"
