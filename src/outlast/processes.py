"""Processes as the kernel knows them (Linux). No torch: asked before it is imported."""

import contextlib
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes that ``pid`` has started and that are there still."""
    pids: list[int] = []
    # a process or one of its threads may end while we look
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids += map(int, (task / "children").read_text().split())
    return pids
