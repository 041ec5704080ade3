"""Signals: the first one sets a flag, nothing else. No torch here: installed before imports."""

import os
import signal
import socket
import threading
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

    def install(self) -> "Interrupt":
        """Take over the signals of this process. Main thread only."""
        inbox, outbox = socket.socketpair()
        outbox.setblocking(False)
        # it lives as long as the process
        signal.set_wakeup_fd(outbox.detach(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_stop_telling)
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            signal.signal(number, self._note)
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)

    def _listen(self, inbox: socket.socket) -> None:
        """Leave at once when a second request comes.

        Python runs handlers between two lines of the main thread, which may wait for other ranks
        for minutes: two signals of one request would come to them far apart, and a second request
        would not come to them. Here they come when they are sent.
        """
        first = None
        while data := inbox.recv(1):
            if (number := data[0]) not in SIGNALS:
                continue
            self._note(number, None)
            now = time.monotonic()
            first = first or now
            if now - first > SAME_REQUEST_S:
                os._exit(128 + number)


def _stop_telling() -> None:
    """A signal to a child of ours is no request to us."""
    signal.set_wakeup_fd(-1)
