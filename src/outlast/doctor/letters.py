"""The files by which the login node and the job on its node speak to each other."""

import time
from collections.abc import Callable
from pathlib import Path

TOKEN, HEARD = "token", "heard"  # of the login node
# of the job
ANSWER, ECHO, STEP, TORCH = "answer.json", "echo.json", "step.json", "torch.json"
POLL_S = 0.2


def wait_for(path: Path, is_over: Callable[[], bool]) -> bool:
    """Wait until a file is there; return False if it is over before.

    The folder is listed: an NFS client keeps in mind for long that a file was not there.
    """
    while path not in (path.parent.iterdir() if path.parent.is_dir() else ()):
        if is_over():
            return False
        time.sleep(POLL_S)
    return True
