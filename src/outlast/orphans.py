"""Nobody outlives whoever has started him (Linux): a retry would find a second writer."""

import contextlib
import ctypes
import os
import signal
import threading
import time

from outlast.processes import ancestors_of, start_of

# set by torchrun for its ranks
TORCHRUN_PID = "OUTLAST_TORCHRUN_PID"
# between two looks at a torchrun that is not the parent
LOOK_S = 0.5


def die_with_torchrun() -> None:
    """End this rank when its torchrun is gone.

    The ranks are in sessions of their own: a SIGKILL of torchrun would leave them training, and
    the retry would be a second writer beside them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    torchrun = int(os.environ.get(TORCHRUN_PID, os.getppid()))
    if os.getppid() == torchrun:
        send_when_parent_ends(signal.SIGKILL)
        if os.getppid() != torchrun:  # it died before we had asked
            _leave(f"its torchrun (process {torchrun}) is gone")
        return
    # a wrapper has started us, such as a profiler: the kernel tells of its end, not of torchrun's
    start = start_of(torchrun)
    if start is None or torchrun not in ancestors_of(os.getpid()):
        _leave(f"its torchrun (process {torchrun}) is gone, or not to be seen from here")
    threading.Thread(target=_watch, args=(torchrun, start), daemon=True).start()


def _watch(torchrun: int, start: str) -> None:
    while start_of(torchrun) == start:
        time.sleep(LOOK_S)
    _leave(f"its torchrun (process {torchrun}) is gone")


def _leave(why: str) -> None:
    line = f"rank {os.environ.get('RANK', '0')} ends: {why}\n"
    with contextlib.suppress(OSError):  # not print: another thread may hold its lock
        os.write(1, line.encode())
    os.kill(os.getpid(), signal.SIGKILL)


def send_when_parent_ends(number: int) -> None:
    """Have the kernel send a signal to this process when its parent has ended."""
    set_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_death_signal, int(number))
