"""Signals: the handler sets a flag, nothing else. No torch here: it is installed before imports."""

import os
import signal
import time
from types import FrameType

from outlast.processes import SAME_REQUEST_S

# SIGHUP: a terminal or an ssh connection that is closed
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Interrupt:
    """Remembers that this process was asked to stop.

    The loop looks at :attr:`received` at each step boundary. Saving inside a handler would
    deadlock on whatever the interrupted code holds (Lightning issue 21406). :attr:`started` is
    when the attempt began, before the imports.
    """

    def __init__(self) -> None:
        """Nothing received yet; the attempt begins."""
        self.started = time.monotonic()
        self.received: signal.Signals | None = None
        self._first = 0.0

    def install(self) -> "Interrupt":
        """Take over the signals of this process. Main thread only."""
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._first = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._first > SAME_REQUEST_S:
            os._exit(128 + number)  # a second request: leave at once
