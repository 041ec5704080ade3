"""A plugin of torchrun (`--logs-specs outlast`): a clear line instead of its traceback.

torchrun raises an exception of its own when a signal stops it and when a rank ends with an
error. Both are ordinary here, and the ranks have said why. It is also where torchrun learns to
pass on SIGUSR1 and SIGUSR2, which would end it at once and leave the ranks behind. And nobody
trains on after whoever has started him is gone: that would be a second writer. (Linux.)
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from outlast.processes import children_of

# Set by the train rule to the process that torchrun must not outlive. Without it `nohup torchrun
# ... &` outlives the shell, as people expect.
END_WITH_PARENT = "OUTLAST_END_WITH_PARENT"
# set by torchrun for its ranks
TORCHRUN_PID = "OUTLAST_TORCHRUN_PID"
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
NOBODY_SENDS = "SIGURG"


class QuietLogsSpecs(DefaultLogsSpecs):
    """Where torchrun puts the output of the ranks: on its own, unless other options say so."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        **options: Any,
    ) -> None:
        """Take torchrun's options. Without a folder for logs, make none.

        By default every attempt would leave an empty one among the temporary files for ever.
        """
        if log_dir is None and redirects == Std.NONE and tee == Std.NONE:
            log_dir = os.devnull
        logging.disable(logging.ERROR)  # of torchrun: the lines below say it in short
        sys.excepthook = _explain  # from here on: a signal may come while the ranks meet
        super().__init__(log_dir, redirects, tee, **options)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Prepare this torchrun, just before it starts the ranks and installs its handlers."""
        # torchrun's own handler raises at each signal: a second Ctrl-C would cut the shutdown
        # short that the first one began, and the ranks with it
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = NOBODY_SENDS
        for number in FORWARDED:
            signal.signal(number, _shut_down_once)
        os.environ[TORCHRUN_PID] = str(os.getpid())
        if parent := os.environ.get(END_WITH_PARENT):
            _send_when_parent_ends(signal.SIGTERM)
            if os.getppid() != int(parent):  # while torch was imported, which takes seconds
                print("torchrun: whoever started it is gone, so nothing is trained", flush=True)
                raise SystemExit(1)
        return super().reify(envs)


_is_shutting_down = False


def _shut_down_once(number: int, _frame: FrameType | None) -> None:
    """Let torchrun pass on the first signal and wait for the ranks; pass on later ones as well."""
    global _is_shutting_down
    if _is_shutting_down:
        for pid in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return
    _is_shutting_down = True
    sigval = signal.Signals(number)
    raise SignalException(f"torchrun got {sigval.name}", sigval=sigval)


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        print("torchrun: stopped by SIGINT", flush=True)
    elif isinstance(error, SignalException):
        print(f"torchrun: stopped by {signal.Signals(error.sigval).name}", flush=True)
    elif isinstance(error, ChildFailedError):
        rank, failure = min(error.failures.items(), key=lambda item: _likely_cause(item[1]))
        print(f"torchrun: rank {rank} {_ending(failure.exitcode)}", flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


def _likely_cause(failure: ProcessFailure) -> tuple[int, int]:
    """Return a sort key: the first noticed; of those noticed at once, not the one dragged along.

    A rank that was killed lets the others fail in their next collective, and torchrun ends the
    rest with SIGTERM.
    """
    killed, ended_by_torchrun = failure.exitcode < 0, failure.exitcode == -signal.SIGTERM
    return failure.timestamp, 2 if ended_by_torchrun else 0 if killed else 1


def _ending(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def die_with_parent() -> None:
    """End this rank when its torchrun is gone (Linux).

    The ranks are in sessions of their own: a SIGKILL of torchrun would leave them training, and
    the retry would be a second writer beside them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = int(os.environ.get(TORCHRUN_PID, os.getppid()))
    _send_when_parent_ends(signal.SIGKILL)
    if os.getppid() != parent:  # it died before we had asked
        os.kill(os.getpid(), signal.SIGKILL)


def _send_when_parent_ends(number: signal.Signals) -> None:
    set_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_death_signal, number)
