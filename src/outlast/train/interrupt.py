"""Signals: the first one sets a flag, nothing else. No torch here: installed before imports."""

import contextlib
import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any

from outlast.processes import HEARS, SAME_REQUEST_S, name_this_thread

# SIGHUP: a terminal or an ssh connection that is closed
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TICK_S = 0.05


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
        self._outbox = -1
        self._before: dict[signal.Signals, Any] = {}
        self._blocked = threading.local()

    def install(self) -> "Interrupt":
        """Take over the signals of this process. Main thread only."""
        inbox, outbox = socket.socketpair()
        outbox.setblocking(False)
        self._outbox = outbox.detach()  # it lives as long as the process
        signal.set_wakeup_fd(self._outbox, warn_on_full_buffer=False)
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._give_back
        )
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._handle)
        threading.Thread(target=self._listen, args=(inbox,), daemon=True).start()
        return self

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._note(number)
        # asyncio may have taken the way to the listener away
        if signal.set_wakeup_fd(self._outbox, warn_on_full_buffer=False) != self._outbox:
            with contextlib.suppress(OSError):
                os.write(self._outbox, bytes([number]))

    def _note(self, number: int) -> None:
        if self.received is None:
            self.received = signal.Signals(number)

    def _listen(self, inbox: socket.socket) -> None:
        """Leave at once when a second request comes.

        Python runs handlers between two lines of the main thread, which may wait for other ranks
        for minutes: two signals of one request would come to them far apart, and a second request
        would not come to them. The time from one to the next is that in which this thread was
        alive: the process may have been stopped, or Python busy in one long call.
        """
        name_this_thread(HEARS)
        alive_s = None
        while True:
            try:
                number = inbox.recv(1)[0]
            except TimeoutError:
                alive_s = (alive_s or 0.0) + TICK_S
                continue
            if number not in SIGNALS:
                continue
            self._note(number)
            if alive_s is None:
                alive_s = 0.0
                inbox.settimeout(TICK_S)
            elif alive_s >= SAME_REQUEST_S:
                _leave(signal.Signals(number))

    def _block(self) -> None:
        """Before a fork: a child that is ended at once would be heard here."""
        self._blocked.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked.mask)

    def _give_back(self) -> None:
        """Undo all in a child: a signal to it is for it alone, and ends it."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self._unblock()


def _leave(number: signal.Signals) -> None:
    line = (
        f"rank {os.environ.get('RANK', '0')} leaves at once, and saves nothing more:"
        f" {number.name} is the second request\n"
    )
    with contextlib.suppress(OSError):  # not print: another thread may hold its lock
        os.write(1, line.encode())
    os._exit(128 + number)
