"""Attempts of several recipes in one folder: each has the seconds of its own state."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.train.ledger import ATTEMPTS_JSONL, Ledger


def lines(folder: Path) -> list[dict[str, Any]]:
    """The attempts on disk."""
    return [json.loads(line) for line in (folder / ATTEMPTS_JSONL).read_text().splitlines()]


def test_what_was_kept_is_counted_for_its_own_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is killed, B is killed, A goes on: the seconds in its state are those of A."""
    now = 500.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def killed(name: str, epoch: int, step: int, seconds: float, trained: float) -> None:
        """An attempt from there, killed behind a save that it did not live to note."""
        nonlocal now
        ledger = Ledger(tmp_path)
        ledger.begin(epoch, step, seconds, name)
        now += trained
        ledger.update(epoch, step + 1)

    killed("A", 0, 0, 0.0, 10.0)
    killed("B", 0, 0, 0.0, 6.0)
    assert [line["kept_seconds"] for line in lines(tmp_path)] == [0.0], "no state of A was loaded"
    assert [line["lost_seconds"] for line in lines(tmp_path)] == [10.0]
    killed("A", 1, 4, 9.0, 20.0)
    first, second = lines(tmp_path)
    assert (first["kept_seconds"], first["lost_seconds"]) == (9.0, 1.0)
    assert (first["epoch"], first["step"]) == (1, 4)
    assert (second["kept_seconds"], second["lost_seconds"]) == (0.0, 6.0)
    assert (second["epoch"], second["step"]) == (0, 1)
    killed("A", 2, 0, 24.0, 7.0)
    assert [line["kept_seconds"] for line in lines(tmp_path)] == [9.0, 0.0, 15.0]
    assert Ledger(tmp_path).lost_seconds == 1 + 6 + 5 + 7
