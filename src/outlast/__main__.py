"""`python -m outlast`, which is what torchrun starts."""

import atexit
import contextlib
import os
import sys
import threading

# for the threads and child processes of a network to end, once all is done
PATIENCE_S = 30.0


class Ending:
    """Ends this process without taking the interpreter down.

    torch's threads may still be at work then, and abort the process now and then ("terminate called
    without an active exception"): a run that is complete would have failed.
    """

    def __init__(self) -> None:
        """Be the first one to register with atexit, and so the last one that is called."""
        self.code = 1  # that of an exception
        atexit.register(self.leave)

    def begin(self) -> None:
        """Give the rest of the process some time: it may wait for a thread that never ends."""
        timer = threading.Timer(PATIENCE_S, self._give_up)
        timer.daemon = True
        timer.start()

    def _give_up(self) -> None:
        line = f"all is done; what the network has started did not end within {PATIENCE_S:.0f} s\n"
        with contextlib.suppress(OSError):
            os.write(1, line.encode())
        self.leave()

    def leave(self) -> None:
        """Leave now."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # nobody reads it, or it is closed or None
                stream.flush()
        os._exit(self.code)


def fill_standard_streams() -> None:
    """Open those that are closed, on nothing: what is opened next would get what C prints."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


if __name__ == "__main__":
    fill_standard_streams()
    ending = Ending()

    from outlast.cli import main

    try:
        ending.code = main()
    except SystemExit as error:  # of argparse
        ending.code = int(error.code or 0)
        raise
    finally:
        ending.begin()
