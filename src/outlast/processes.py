"""Processes as the kernel knows them (Linux), and how those of a run understand each other.

No torch: asked before it is imported.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

# sysexits.h: EX_TEMPFAIL, "try again". torchrun turns it into 1; status.json keeps the reason.
EXIT_INTERRUPTED = 75
# One request may arrive twice: from the terminal or SLURM, and again through torchrun.
SAME_REQUEST_S = 2.0
# name of the thread that hears signals in a rank: so that one is told from what it has started
HEARS = "outlast-hears"


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that ``pid`` has started and that are there still."""
    pids: list[int] = []
    # a process or one of its threads may end while we look
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids += map(int, (task / "children").read_text().split())
    return pids


def descendants_of(pid: int) -> list[int]:
    """Return the ids of the children of ``pid``, of theirs, and so on."""
    pids = children_of(pid)
    for child in pids:  # grows as we go
        pids += children_of(child)
    return pids


def members_of(sessions: Iterable[int]) -> list[int]:
    """Return the ids of the processes in sessions, also of one whose leader has ended."""
    wanted = set(map(str, sessions))
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if (fields := _stat(pid)) and fields[3] in wanted]


def ancestors_of(pid: int) -> list[int]:
    """Return the ids of the parent of ``pid``, of its parent, and so on."""
    pids: list[int] = []
    while (fields := _stat(pid)) and (pid := int(fields[1])) > 0:
        pids.append(pid)
    return pids


def name_this_thread(name: str) -> None:
    """Give it a name that other processes can see; of fifteen letters at most."""
    set_name = 15  # PR_SET_NAME of prctl(2)
    ctypes.CDLL(None).prctl(set_name, ctypes.c_char_p(name.encode()))


def hears(pid: int) -> bool:
    """Tell whether a process is a rank that has taken over its signals."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return any((task / "comm").read_text().strip() == HEARS for task in tasks)
    return False


def start_of(pid: int) -> str | None:
    """Return what tells a process from a later one of the same id; None for none or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else fields[19]  # in ticks since the boot


def _stat(pid: int) -> list[str] | None:
    """Return the fields of proc(5) from the state on; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def has_failed(child: int) -> bool:
    """Tell whether a child of ours has ended with an error, or was killed. Collects no zombie."""
    try:
        end = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True  # somebody has collected it, and knows
    if end is None:
        return False
    return end.si_code != os.CLD_EXITED or end.si_status not in (0, EXIT_INTERRUPTED)
