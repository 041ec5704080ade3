"""How long until the next save: as configured, longer where saving is slow, whatever the hiccup."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from small_run import make_trainer, small_config, small_data

from outlast.distributed import Distributed
from outlast.train.deadline import Deadline
from outlast.train.interrupt import Interrupt
from outlast.train.poll import Poll


class Saves:
    """A poll of which a save is asked as soon as one is due, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every_seconds: float) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.poll = Poll(Distributed(), Interrupt(), every_seconds)

    def interval(self) -> float:
        """Seconds until the next one is due, to a tenth."""
        started = self.now
        while not self.poll.ask().save:
            self.now += 0.1
            assert self.now - started < 1e5
        return round(self.now - started, 1)

    def save(self, copy: float, write: float = 0.0) -> float:
        """Save now, which takes so long; return the seconds to the next one."""
        self.poll.note_copy(copy, copy)
        self.poll.note_write(write)
        return self.interval()

    def all(self, copies: Iterable[float], writes: Iterable[float]) -> list[float]:
        """The seconds behind each."""
        return [self.save(copy, write) for copy, write in zip(copies, writes, strict=True)]


ZEROS = [0.0] * 9


@pytest.mark.parametrize(
    ("every", "copies", "writes", "expected"),
    [
        (10, ZEROS[:2], ZEROS[:2], [10, 10]),
        (10, [0.04, 0.04], [4, 4], [10, 10]),
        (10, [0.1, 0.1, 0.1], ZEROS[:3], [10, 20, 20]),
        (10, ZEROS[:5], [30] * 5, [10, 20, 40, 60, 60]),
        # a copy of 1 s: half a percent after a few saves; of 30 s: never more than ten minutes
        (10, [1.0] * 7, ZEROS[:7], [10, 20, 40, 80, 160, 200, 200]),
        (60, [30.0] * 6, ZEROS[:6], [60, 120, 240, 480, 600, 600]),
        (600, [60.0] * 6, ZEROS[:6], [600, 1200, 2400, 4800, 6000, 6000]),
        # and back at once
        (10, [1.0, 1.0, 1.0, 0.01, 0.01], ZEROS[:5], [10, 20, 40, 80, 10]),
        (0, [9.0, 9.0, 9.0], [9.0, 9.0, 9.0], [0, 0, 0]),
    ],
)
def test_the_interval_stretches(
    every: float,
    copies: list[float],
    writes: list[float],
    expected: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies take no more than half a percent, the disk is ours half the time; 0 stays 0."""
    assert Saves(monkeypatch, every).all(copies, writes) == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("what", ["copy", "write"])
def test_a_hiccup_does_not_stretch_it(what: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the very first save, which is always the slowest."""
    slow = [0.01] * 6
    slow[at] = 300.0
    copies, writes = (slow, [0.01] * 6) if what == "copy" else ([0.01] * 6, slow)
    found = Saves(monkeypatch, 60).all(copies, writes)
    assert found == pytest.approx([60] * 6, abs=0.2)


def test_only_the_copy_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a check that waits for other ranks or for a file system; the deadline knows of both."""
    trainer = make_trainer(tmp_path, small_data(), small_config(60))
    real, keeper, seen = trainer._check, trainer._keeper, []

    def slow() -> None:
        time.sleep(0.2)
        real()

    keeper._check = slow
    keeper.poll._deadline = deadline = Deadline(1e6)
    note = keeper.poll.note_copy
    monkeypatch.setattr(keeper.poll, "note_copy", lambda *both: (seen.append(both), note(*both)))
    for _ in range(3):
        keeper.save(wait=True)
    assert all(copy < 0.1 and stall >= 0.2 for copy, stall in seen)
    assert keeper.poll._save_interval() == 60
    assert deadline._longest_save >= 0.2


def test_none_is_due_while_one_is_on_its_way() -> None:
    """However slow it is."""
    busy = True
    poll = Poll(Distributed(), Interrupt(), 1e-9, None, lambda: busy)
    time.sleep(0.01)
    assert not poll.ask().save
    busy = False
    assert poll.ask().save
