"""Reading a state file: with patience, verified before it is parsed, looked through before use."""

import errno
import io
import time
from pathlib import Path
from typing import Any

import torch

from outlast.errors import CheckpointError
from outlast.files import digest, is_intact
from outlast.train.state import FORMAT, READABLE_FORMATS, SavedState

# between two looks at a file that cannot be read: a network file system may be back in seconds
PATIENCE_S = (0.2, 1.0, 3.0)
NO_FILE = (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)


class UnusableState(Exception):  # noqa: N818 - a finding, not an error of ours
    """A file that no attempt can go on from.

    Attributes:
        problem: What it is, for the user.
        kind: Part of the name to set it aside under.
    """

    def __init__(self, problem: str, kind: str) -> None:
        """Keep both."""
        super().__init__(problem)
        self.problem, self.kind = problem, kind


def read_state(path: Path, patience_s: tuple[float, ...] = PATIENCE_S) -> SavedState | None:
    """Return the state in a file, or None where there is none.

    Args:
        path: The file.
        patience_s: Seconds to wait before each new attempt to read it.

    Raises:
        UnusableState: Altered, of another format, or no state at all.
        CheckpointError: It cannot be read now; it may be as good as ever.
    """
    content = _read_bytes(path, patience_s)
    if content is None:
        return None
    name = digest(content)[:12]
    if not is_intact(content):
        raise UnusableState("truncated or altered", f"damaged-{name}")
    try:
        values = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        found = values.get("format")
        if found in READABLE_FORMATS:
            state = SavedState(**values)
            if problem := state.problem():
                raise TypeError(problem)
            return state
    except Exception as error:
        if is_lack_of_memory(error):
            raise _cannot_be_read(path, "too little memory") from error
        problem = f"no state of outlast ({type(error).__name__})"
        raise UnusableState(problem, f"damaged-{name}") from error
    problem = f"of format {found}, this version reads {FORMAT}"
    raise UnusableState(problem, f"format-{_word(found)}-{name}")


def _read_bytes(path: Path, patience_s: tuple[float, ...]) -> bytes | None:
    for pause in (*patience_s, None):
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for, for ever
                raise OSError(errno.EINVAL, "no plain file")
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except MemoryError as error:
            raise _cannot_be_read(path, "too little memory for a file of its size") from error
        except OSError as error:
            if error.errno in NO_FILE or (pause is None and error.errno == errno.EIO):
                name = digest(str(time.time_ns()).encode())[:12]
                problem = f"unreadable ({error.strerror})"
                raise UnusableState(problem, f"unreadable-{name}") from error
            if pause is None:
                raise _cannot_be_read(path, str(error.strerror)) from error
            time.sleep(pause)
    raise AssertionError("the last round has returned or raised")


def is_lack_of_memory(error: Exception) -> bool:
    """Tell whether an error is no word about the values: another time, there may be room."""
    # torch says so with a RuntimeError of its allocator
    is_of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_of_torch or isinstance(error, MemoryError)


def _cannot_be_read(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read now ({why}), and nothing is trained anew for that: correct it, or"
        " move the file away, and start the run again"
    )


def _word(value: Any) -> str:
    return str(value) if isinstance(value, int) and 0 <= value < 1000 else "unknown"
