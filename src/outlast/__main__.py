"""`python -m outlast`, which is what torchrun starts."""

import atexit
import contextlib
import os
import sys


def leave_at_exit() -> dict[str, int]:
    """End this process at exit without taking the interpreter down; return where its code goes.

    torch's threads may still be at work then, and abort the process now and then ("terminate called
    without an active exception"): a run that is complete would have failed.
    """
    ending = {"code": 1}  # that of an exception

    @atexit.register  # the first one to come is the last one to be called
    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
        os._exit(ending["code"])

    return ending


if __name__ == "__main__":
    ending = leave_at_exit()

    from outlast.cli import main

    try:
        ending["code"] = main()
    except SystemExit as error:  # of argparse
        ending["code"] = int(error.code or 0)
        raise
