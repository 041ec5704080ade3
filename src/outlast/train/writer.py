"""Writing beside the training: no step waits for the disk."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from outlast.model.copies import copied
from outlast.train.state import SavedState


class Writer:
    """One thread, and at most one file in flight."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outlast-writer")
        self._job: Future[float] | None = None
        self._then: Callable[[float], None] | None = None
        self._copy: SavedState | None = None

    @property
    def is_busy(self) -> bool:
        """Tell whether a file is being written."""
        return self._job is not None and not self._job.done()

    def copy(self, state: SavedState) -> SavedState:
        """Return a copy on the CPU that training does not change.

        It lies in the memory of the copy before, which is therefore written first.

        Raises:
            Exception: What was in flight has failed.
        """
        self.drain()
        self._copy = copy_of(state, self._copy)
        return self._copy

    def submit(self, write: Callable[[], Any], then: Callable[[float], None]) -> None:
        """Write in the background, after what is in flight.

        Args:
            write: Called in the thread; it must touch nothing that training changes.
            then: Called with the seconds that it took, by :meth:`reap`, if it has succeeded.

        Raises:
            Exception: What was in flight has failed; ``write`` is not called then.
        """
        self.drain()

        def timed() -> float:
            started = time.monotonic()
            write()
            return time.monotonic() - started

        self._job, self._then = self._pool.submit(timed), then

    def reap(self) -> None:
        """Take note of what has been written.

        Raises:
            Exception: That of a write that has failed.
        """
        if self._job is None or not self._job.done():
            return
        job, then = self._job, self._then
        self._job = self._then = None
        seconds = job.result()
        assert then is not None, "submitted together"
        then(seconds)

    def drain(self) -> None:
        """Wait for what is in flight, and take note of it.

        Raises:
            Exception: That of a write that has failed.
        """
        if self._job is not None:
            self._job.exception()  # waits
            self.reap()


def copy_of(state: SavedState, before: SavedState | None = None) -> SavedState:
    """Return a copy on the CPU that training does not change.

    Args:
        state: What to copy.
        before: A copy that nobody needs any more. Its tensors are written over where they fit:
            memory that is new to the process costs as much as the copying itself.
    """
    # the best weights are a copy already, and replaced as a whole
    best = {"best_weights": state.best_weights, "best_buffers": state.best_buffers}
    none: dict[str, Any] = {name: {} for name in best}
    ours = copied(state.as_dict() | none, before.as_dict() | none if before else {})
    return SavedState(**ours | best)
