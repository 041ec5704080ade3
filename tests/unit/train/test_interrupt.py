import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outlast.distributed import Distributed
from outlast.train.interrupt import Interrupt
from outlast.train.poll import Answer, Poll

# says what it knows, each time that it is sent a line
LISTENER = """
import sys
from outlast.train import interrupt
interrupt.SAME_REQUEST_S = float(sys.argv[1])
flag = interrupt.Interrupt().install()
print("ready", flush=True)
while sys.stdin.readline():
    print(flag.received.name if flag.received else "nothing", flush=True)
"""


class Listener:
    """A process with the flag installed."""

    def __init__(self, same_request_s: float) -> None:
        command = [sys.executable, "-c", LISTENER, str(same_request_s)]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1)
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self) -> str:
        """Return the name of the signal that it has noted."""
        assert self.process.stdin is not None
        self.process.stdin.write("?\n")
        return self.read()

    def wait_for(self, answer: str) -> None:
        deadline = time.monotonic() + 10
        while self.ask() != answer:
            assert time.monotonic() < deadline


@contextmanager
def listening(same_request_s: float) -> Iterator[Listener]:
    """Start a listener, and leave none behind."""
    listener = Listener(same_request_s)
    try:
        yield listener
    finally:
        listener.process.kill()
        listener.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    """A real signal is noted by name; the process goes on with what it was doing (story 3)."""
    with listening(2.0) as listener:
        assert listener.ask() == "nothing"
        listener.process.send_signal(number)
        listener.wait_for(number.name)
        assert listener.process.poll() is None


def test_the_same_request_may_arrive_twice() -> None:
    """Two signals within two seconds, from SLURM and again through torchrun, are one request."""
    with listening(2.0) as listener:
        listener.process.send_signal(signal.SIGTERM)
        listener.wait_for("SIGTERM")
        listener.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert listener.ask() == "SIGTERM"


def test_a_second_request_leaves_at_once() -> None:
    """A later signal ends the process without waiting for a boundary, with 128 + its number."""
    with listening(0.2) as listener:
        listener.process.send_signal(signal.SIGTERM)
        listener.wait_for("SIGTERM")
        time.sleep(0.3)
        listener.process.send_signal(signal.SIGINT)
        assert listener.process.wait(10) == 128 + signal.SIGINT
        said = "rank 0 leaves at once, and saves nothing more: SIGINT is the second request"
        assert listener.read() == said


def test_a_request_stays_one_while_the_process_is_stopped() -> None:
    """SLURM suspends a job between the two signals of one request."""
    with listening(0.5) as listener:
        listener.process.send_signal(signal.SIGTERM)
        listener.wait_for("SIGTERM")
        listener.process.send_signal(signal.SIGSTOP)
        listener.process.send_signal(signal.SIGINT)
        time.sleep(1)
        listener.process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
        assert listener.ask() == "SIGTERM"


# asyncio takes the way on which signals are heard, and gives none back
ASYNC = """
import asyncio, signal, sys, time
from outlast.train.interrupt import Interrupt
flag = Interrupt().install()
async def wait():
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, print)
asyncio.run(wait())
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def test_a_second_request_is_heard_after_asyncio() -> None:
    """The first one sets the flag, and mends the way."""
    with subprocess.Popen([sys.executable, "-c", ASYNC], stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        time.sleep(2.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM


# what waiting for other ranks is to Python: no handler runs until it is over
BUSY = """
import hashlib, sys, threading, time
from outlast.train.interrupt import Interrupt
flag = Interrupt().install()
started = time.monotonic()
hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
rounds = int(200_000 * float(sys.argv[1]) / (time.monotonic() - started))
print("busy", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
print(flag.received.name, flush=True)
"""


def test_one_request_stays_one_while_the_rank_waits_for_others() -> None:
    """The second signal of a request came half a second later; it is seen after six."""
    with subprocess.Popen([sys.executable, "-c", BUSY, "6"], stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        time.sleep(0.5)
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.5)
        assert process.stdout.read() == "SIGTERM\n"
        assert process.wait(20) == 0


def test_a_second_request_is_heard_while_the_rank_waits_for_others() -> None:
    """They may hang: Ctrl-C, and Ctrl-C again."""
    with subprocess.Popen([sys.executable, "-c", BUSY, "60"], stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        process.send_signal(signal.SIGINT)
        time.sleep(2.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 128 + signal.SIGINT


# a network may start helpers by fork, and end them by SIGTERM
FORKING = """
import os, signal, time
from outlast.train.interrupt import Interrupt
flag = Interrupt().install()
for _ in range(2):
    child = os.fork()
    if not child:
        time.sleep(10)
        os._exit(0)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    time.sleep(2.5)
    os.kill(child, signal.SIGKILL)
print(flag.received, flush=True)
"""


# a pool, a worker that is ended, and one that Python ends at exit
HELPERS = """
import multiprocessing, time
from outlast.train.interrupt import Interrupt
flag = Interrupt().install()
for _ in range(20):
    with multiprocessing.Pool(2) as pool:
        pool.map(abs, range(4))
for is_daemon in (False, True):
    worker = multiprocessing.Process(target=time.sleep, args=(60,), daemon=is_daemon)
    worker.start()
    if not is_daemon:
        worker.terminate()
        worker.join()
print(flag.received, flush=True)
"""


def test_helpers_of_a_network_can_be_ended() -> None:
    """They inherit the handlers, which must not keep them alive."""
    command = [sys.executable, "-c", HELPERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_a_signal_to_a_child_is_no_request() -> None:
    """Two of them to a helper process neither stop nor end this one."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_one_rank_stops_when_it_is_asked() -> None:
    """The flag gives stop and save at the next boundary; without it, nothing."""
    interrupt = Interrupt()
    poll = Poll(Distributed(), interrupt, every_seconds=1e6)
    assert poll.ask() == Answer(save=False, stop=None)
    interrupt.received = signal.SIGTERM
    assert poll.ask() == Answer(save=True, stop="SIGTERM")


def test_one_rank_saves_when_it_is_time() -> None:
    """A save is due after the interval, and again after the clock was started anew."""
    poll = Poll(Distributed(), Interrupt(), every_seconds=0.1)
    assert poll.ask() == Answer()
    time.sleep(0.11)
    assert poll.ask() == Answer(save=True)
    poll.note_copy(0.0, 0.0)
    assert poll.ask() == Answer()


def test_every_boundary_saves_when_the_interval_is_zero() -> None:
    """checkpoint.every_seconds: 0 saves at each step."""
    poll = Poll(Distributed(), Interrupt(), every_seconds=0)
    for _ in range(3):
        assert poll.ask() == Answer(save=True)
        poll.note_copy(0.0, 0.0)


def test_a_hangup_that_nobody_wants_to_hear_is_not_heard() -> None:
    """Nohup, which has people close their terminals."""
    command = ["nohup", sys.executable, "-c", LISTENER, "2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate("?\n", timeout=30)
    assert said == "SIGUSR1\n"
