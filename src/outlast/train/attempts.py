"""`outlast history RUN`: the attempts of a run, with the seconds that each kept and lost."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outlast.errors import CheckpointError
from outlast.train.ledger import read_attempts
from outlast.train.lines import printable

RUNNING = "running, or killed since"


def show_attempts(folder: Path) -> None:
    """Print a line per attempt, and their sums.

    Raises:
        CheckpointError: Nothing has been trained in this folder.
    """
    attempts = read_attempts(folder)
    if not attempts:
        raise CheckpointError(f"{folder}: no attempt is on record there; name the folder of a run")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "started", "host", "job"):
        table.add_column(name, overflow="fold")
    for name in ("from", "to", "kept s", "lost s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("end", overflow="fold")
    for line in attempts:
        table.add_row(*(escape(printable(cell)) for cell in _row(line)))
    console = Console()
    console.print(table)
    kept, lost = (sum(line[f"{word}_seconds"] for line in attempts) for word in ("kept", "lost"))
    console.print(f"{len(attempts)} attempts: {kept:,.1f} s kept, {lost:,.1f} s lost")


def _row(line: dict[str, Any]) -> list[str]:
    state = RUNNING if line["state"] == "running" else line["state"]
    reason = str(line.get("reason") or "")
    return [
        str(line["attempt"]),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["started"])),
        str(line.get("host") or ""),
        str(line.get("job") or ""),
        _position(line.get("from_epoch"), line.get("from_step")),
        _position(line.get("epoch"), line.get("step")),
        f"{line['kept_seconds']:,.1f}",
        f"{line['lost_seconds']:,.1f}",
        state if reason in ("", state) else f"{state}: {reason}",
    ]


def _position(epoch: int | None, step: int | None) -> str:
    """Return epochs finished and steps behind them, or nothing for who never began."""
    return "" if epoch is None else f"{epoch}+{step}"
