"""A plugin of torchrun (`--logs-specs outlast`): a clear line instead of its traceback.

torchrun raises an exception of its own when a signal stops it and when a rank ends with an
error. Both are ordinary here, and the ranks have said why. It is also where torchrun learns to
pass on SIGUSR1 and SIGUSR2, which would end it at once and leave the ranks behind, and to wait
until they have saved. And it saves and leaves when whoever has started it is gone. (Linux.)
"""

import contextlib
import logging
import math
import os
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from outlast.orphans import TORCHRUN_PID, send_when_parent_ends
from outlast.processes import (
    SAME_REQUEST_S,
    children_of,
    descendants_of,
    has_failed,
    hears,
    members_of,
    start_of,
)

# Set by the train rule to the process that torchrun must not outlive. Without it `nohup torchrun
# ... &` outlives the shell, as people expect.
END_WITH_PARENT = "OUTLAST_END_WITH_PARENT"
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
NOBODY_SENDS = "SIGURG"
# of ours: a signal that people send as well would look like a second request
PARENT_IS_GONE = signal.SIGRTMIN
# So long the other ranks may take to leave after one that has failed: they may wait for it.
FAILED_S = 30.0
# the second request lets the ranks leave unsaved, if they can hear it
KILLING_REQUEST = 3


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
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            signal.signal(number, _pass_on)
        _shutdown.num_ranks = len(envs)
        os.environ[TORCHRUN_PID] = str(os.getpid())
        if parent := os.environ.get(END_WITH_PARENT):
            signal.signal(PARENT_IS_GONE, _shut_down_alone)
            send_when_parent_ends(PARENT_IS_GONE)
            if os.getppid() != int(parent):  # while torch was imported, which takes seconds
                print("torchrun: whoever started it is gone, so nothing is trained", flush=True)
                raise SystemExit(1)
        return super().reify(envs)


class _Shutdown:
    """What torchrun was asked for, and how it ends its ranks.

    torchrun itself would send SIGKILL after 30 s, whatever the ranks are doing: a step and a save
    may take longer, and whoever has asked knows how much time there is. So it learns of the
    request when the ranks have left.
    """

    def __init__(self) -> None:
        self.num_ranks = 0
        self.requests = 0
        self._last = -math.inf

    def ask(self, number: signal.Signals) -> None:
        """Pass a request on. The first one waits for the ranks.

        Raises:
            SignalException: The ranks have left; for torchrun.
        """
        is_first, now = self.requests == 0, time.monotonic()
        family = [(pid, start_of(pid)) for pid in _family()] if is_first else []
        if now - self._last > SAME_REQUEST_S:
            self.requests, self._last = self.requests + 1, now
        if self.requests == KILLING_REQUEST:
            print("torchrun: asked for the third time: the ranks are killed", flush=True)
        _send_to_ranks(signal.SIGKILL if self.requests >= KILLING_REQUEST else number)
        if is_first:
            self._wait_for_ranks(family)
            raise SignalException(f"torchrun got {number.name}", sigval=number)

    def _wait_for_ranks(self, family: list[tuple[int, str | None]]) -> None:
        """Wait until the ranks have saved and left; not for ever once one has failed.

        Args:
            family: All processes below torchrun as the signal came. Behind a wrapper that died of
                it, a rank is nobody's child.
        """
        until = math.inf
        while time.monotonic() < until:
            ranks = children_of(os.getpid())
            any_failed = len(ranks) < self.num_ranks or any(map(has_failed, ranks))
            awaited = family if any_failed else [(pid, start_of(pid)) for pid in ranks]
            if not any(start and start_of(pid) == start for pid, start in awaited):
                return
            if any_failed and until == math.inf:
                until = time.monotonic() + FAILED_S
            time.sleep(0.1)


_shutdown = _Shutdown()


def _pass_on(number: int, _frame: FrameType | None) -> None:
    _shutdown.ask(signal.Signals(number))


def _shut_down_alone(_number: int, _frame: FrameType | None) -> None:
    """Save and leave, as whoever has started us is gone; that is no second request."""
    if _shutdown.requests == 0:
        _shutdown.ask(signal.SIGTERM)


def _family() -> list[int]:
    """Return all below us, those included whose wrapper has died of the same signal before us."""
    own = os.getpid()
    return sorted({*descendants_of(own), *members_of(children_of(own))})


def _send_to_ranks(number: signal.Signals) -> None:
    """Send a signal to the ranks, which may have been started by a wrapper.

    What a network itself has started is no business of ours; but all is ended that cannot hear yet.
    """
    for child in children_of(os.getpid()):
        ranks = [pid for pid in {child, *members_of([child])} if hears(pid)]
        with contextlib.suppress(ProcessLookupError):
            if ranks and number != signal.SIGKILL:
                for pid in ranks:
                    os.kill(pid, number)
                continue
            try:
                os.killpg(child, number)
            except ProcessLookupError:  # it has just been started, and has no session yet
                os.kill(child, number)


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
