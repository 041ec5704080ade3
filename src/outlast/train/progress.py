"""What a user sees while it trains: bars in a terminal, plain lines in a log."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

EVENTS_LOG = "events.log"
log = logging.getLogger("outlast")


class _EventsFile(logging.FileHandler):
    """A file that may fail: on a full disk a line is lost, and nothing else."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say nothing."""

    def close(self) -> None:
        """Close, also when the last lines cannot be written."""
        with contextlib.suppress(OSError):
            super().close()


class RateColumn(TextColumn):
    """Rows per second, from the steps per second that rich measures."""

    def __init__(self) -> None:
        """No format of its own."""
        super().__init__("")

    def render(self, task: Task) -> Text:
        """Return the rate, or nothing for a bar that does not count batches."""
        rows = task.fields.get("rows_per_step")
        if not rows or not task.speed:
            return Text("")
        return Text(f"{task.speed * rows:,.0f} samples/s", style="progress.data.speed")


def make_progress(console: Console) -> Progress:
    """Return the bars: spinner, epoch and batch bar, percent, time left, samples per second."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        RateColumn(),
        console=console,
        transient=True,
    )


@contextmanager
def reporting(folder: Path, is_main: bool) -> Iterator[Progress | None]:
    """Send log lines to the screen and to events.log; yield bars when there is a terminal.

    events.log is appended to by every attempt and belongs to no rule. Other ranks than the
    main one are silent, warnings and errors apart.
    """
    log.setLevel(logging.INFO if is_main else logging.WARNING)
    log.propagate = False
    console = Console()
    handlers: list[logging.Handler] = []
    if console.is_terminal and is_main:
        handlers.append(
            RichHandler(console=console, show_path=False, show_level=False, log_time_format="%X")
        )
    else:
        handlers.append(logging.StreamHandler(sys.stdout))
        handlers[0].setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if is_main:
        with contextlib.suppress(OSError):
            file = _EventsFile(folder / EVENTS_LOG)
            file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            handlers.append(file)
    for handler in handlers:
        log.addHandler(handler)
    try:
        if console.is_terminal and is_main:
            with make_progress(console) as progress:
                yield progress
        else:
            yield None
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


class Bars:
    """The two bars of a run: epochs, and the batches of one epoch. Without progress: nothing."""

    def __init__(self, progress: Progress | None, epochs: int, rows_per_step: int) -> None:
        """Add the bars.

        Args:
            progress: Where to show them; None on other ranks and in a log file.
            epochs: Of the run.
            rows_per_step: For the samples per second.
        """
        self._progress = progress
        self.batches: TaskID | None = None
        if progress is not None:
            self._epochs = progress.add_task("epochs", total=epochs)
            self.batches = progress.add_task("batches", total=None, rows_per_step=rows_per_step)

    def start_epoch(self, epochs_done: int, steps_done: int, num_steps: int) -> None:
        """Show an epoch at its beginning, or where it was resumed."""
        if self._progress is not None and self.batches is not None:
            self._progress.update(self._epochs, completed=epochs_done)
            self._progress.reset(self.batches, total=num_steps, completed=steps_done)
