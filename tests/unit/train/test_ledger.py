import json
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.train.ledger import ATTEMPTS_JSONL, STATUS_JSON, Ledger


def lines(folder: Path) -> list[dict[str, Any]]:
    """The attempts on disk; each line must be whole."""
    return [json.loads(line) for line in (folder / ATTEMPTS_JSONL).read_text().splitlines()]


def status(folder: Path) -> dict[str, Any]:
    """What status.json says."""
    content: dict[str, Any] = json.loads((folder / STATUS_JSON).read_text())
    return content


def test_an_attempt_leaves_a_line(tmp_path: Path) -> None:
    """From the first moment the status says running; the end adds the line of the attempt."""
    ledger = Ledger(tmp_path)
    assert status(tmp_path)["state"] == "running"
    ledger.begin(2, 5, 0.0)
    ledger.update(3, 1)
    ledger.end("interrupted", "why")
    (line,) = lines(tmp_path)
    assert line == status(tmp_path)
    assert [line[key] for key in ("attempt", "state", "reason")] == [1, "interrupted", "why"]
    assert [line[key] for key in ("from_epoch", "from_step", "epoch", "step")] == [2, 5, 3, 1]


def test_a_killed_attempt_is_closed_by_the_next(tmp_path: Path) -> None:
    """A status that still says running becomes a line `killed`, with its last sign of life."""
    Ledger(tmp_path).begin(4, 7, 0.0)
    second = Ledger(tmp_path)
    assert [line["state"] for line in lines(tmp_path)] == ["killed"]
    assert lines(tmp_path)[0]["epoch"] == 4
    second.end("completed")
    third = Ledger(tmp_path)
    assert [line["state"] for line in lines(tmp_path)] == ["killed", "completed"]
    assert [line["attempt"] for line in lines(tmp_path)] == [1, 2]
    assert status(tmp_path)["attempt"] == 3
    assert len(third.attempts) == 2


def test_a_kill_between_status_and_line_loses_nothing(tmp_path: Path) -> None:
    """A closed status without its line gets it from the next attempt, once."""
    Ledger(tmp_path).end("interrupted", "why")
    (tmp_path / ATTEMPTS_JSONL).unlink()
    for _ in range(2):
        Ledger(tmp_path)
    assert [(line["attempt"], line["state"]) for line in lines(tmp_path)] == [
        (1, "interrupted"),
        (2, "killed"),
    ]


@pytest.mark.parametrize("kept", [1, 30, -2])
def test_a_torn_last_line_is_written_anew(tmp_path: Path, kept: int) -> None:
    """A line cut off by a power failure neither stops the next attempts nor spoils their lines."""
    for _ in range(2):
        Ledger(tmp_path).end("interrupted")
    first, second = (tmp_path / ATTEMPTS_JSONL).read_text().splitlines()
    (tmp_path / ATTEMPTS_JSONL).write_text(f"{first}\n{second[:kept]}")
    Ledger(tmp_path).end("interrupted")
    Ledger(tmp_path).end("completed")
    assert [line["attempt"] for line in lines(tmp_path)] == [1, 2, 3, 4]


def test_a_status_that_is_no_json_is_forgotten(tmp_path: Path) -> None:
    """An unreadable status costs its line, not the run."""
    Ledger(tmp_path)
    (tmp_path / STATUS_JSON).write_text('{"attempt": 1, "sta')
    assert Ledger(tmp_path).attempts == []
    assert status(tmp_path)["attempt"] == 1


def test_lost_seconds_add_up_over_attempts(tmp_path: Path) -> None:
    """Those of a run are those of all its attempts, the pauses between them left out."""
    for _ in range(3):
        ledger = Ledger(tmp_path)
        time.sleep(0.05)
        ledger.end("interrupted")
        time.sleep(0.2)
    last = Ledger(tmp_path)
    time.sleep(0.05)
    assert 0.2 <= last.lost_seconds < 0.4


@pytest.mark.parametrize("killed", [True, False])
def test_seconds_kept_and_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Kept is what the last state holds more than the first; the rest of the attempt is lost.

    Whatever happens to the clock on the wall.
    """
    now, wall = 500.0, 1e9
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: wall)
    ledger = Ledger(tmp_path)
    now += 4  # of start-up
    ledger.begin(2, 5, 60.0)
    now += 10
    ledger.keep(69.5)
    wall -= 3600
    now += 6
    ledger.update(2, 9)
    if killed:
        Ledger(tmp_path)
    else:
        ledger.end("interrupted")
    (line,) = lines(tmp_path)
    assert (line["kept_seconds"], line["lost_seconds"]) == (9.5, 10.5)
    again = Ledger(tmp_path)
    assert again.lost_seconds == pytest.approx(10.5)
    again.begin(2, 11, 72.0)  # a state that was written after the last sign of life
    line = lines(tmp_path)[0]
    assert (line["epoch"], line["step"]) == (2, 11 if killed else 9)
    expected = (12.0, 8.0) if killed else (9.5, 10.5)
    assert (line["kept_seconds"], line["lost_seconds"]) == expected


def test_what_a_killed_attempt_kept_is_counted_behind_one_that_never_began(tmp_path: Path) -> None:
    """Such as one that could not build its network."""
    ledger = Ledger(tmp_path)
    ledger.begin(0, 0, 0.0)
    time.sleep(0.05)
    ledger.update(0, 1)  # and is killed behind a save that it did not live to note
    Ledger(tmp_path).fail(ValueError("no"))
    Ledger(tmp_path).begin(0, 3, 0.02)
    killed, failed = lines(tmp_path)
    assert (killed["step"], killed["kept_seconds"]) == (3, 0.02)
    assert (failed["state"], failed["reason"], failed["step"]) == ("failed", "ValueError: no", None)


def test_signs_of_life_are_rare(tmp_path: Path) -> None:
    """Thousands of steps do not write thousands of files; the end writes the latest position."""
    ledger = Ledger(tmp_path)
    ledger.begin(0, 0, 0.0)
    before = (tmp_path / STATUS_JSON).stat().st_mtime_ns
    for step in range(2000):
        ledger.update(0, step)
    assert (tmp_path / STATUS_JSON).stat().st_mtime_ns == before
    ledger.end("completed")
    assert status(tmp_path)["step"] == 1999


@pytest.mark.parametrize("name", [STATUS_JSON, ATTEMPTS_JSONL])
@pytest.mark.parametrize(
    "damage",
    [
        b"[]",
        b"null",
        b"{}",
        b"5\n{}\n",
        b"\xff\xfe",
        b'{"attempt": "x"}',
        b"",
        b"[" * 100_000,
        b"9" * 5000,
        None,
    ],
)
def test_damaged_books_end_no_run(tmp_path: Path, name: str, damage: bytes | None) -> None:
    """Whatever stands in them, or a folder in their place: the attempt begins and ends."""
    Ledger(tmp_path).begin(1, 1, 0.0)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if damage is None:
        path.mkdir()
    else:
        path.write_bytes(damage)
    ledger = Ledger(tmp_path)
    ledger.begin(1, 1, 0.0)
    assert ledger.lost_seconds >= 0
    ledger.end("completed")


def test_the_first_end_counts(tmp_path: Path) -> None:
    """An attempt that was closed with a reason is not closed again with a worse one."""
    ledger = Ledger(tmp_path)
    ledger.end("interrupted", "a signal")
    ledger.end("failed", "SystemExit")
    assert [line["state"] for line in lines(tmp_path)] == ["interrupted"]


@pytest.mark.parametrize("name", [STATUS_JSON, ATTEMPTS_JSONL])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lost_seconds", "NaN"),
        ("lost_seconds", "1e999"),
        ("lost_seconds", "1" + "0" * 400),
        ("kept_seconds", "-1"),
        ("kept_seconds", "true"),
        ("started", "1e300"),
        ("attempt", "true"),
        ("attempt", "-3"),
        ("from_epoch", '"x"'),
        ("from_step", "null"),
        ("epoch", "null"),
        ("step", "[1]"),
        ("state", "7"),
        ("reason", "[" * 900 + "]" * 900),
    ],
)
def test_a_line_with_a_value_of_another_kind_ends_no_run(
    tmp_path: Path, name: str, key: str, value: str
) -> None:
    """It is no attempt, and left out; the numbers of the others are finite."""
    Ledger(tmp_path).begin(1, 1, 0.0)
    line = {**status(tmp_path), "state": "killed" if name == ATTEMPTS_JSONL else "running"}
    rest = {other: line[other] for other in line if other != key}
    (tmp_path / STATUS_JSON).unlink()
    (tmp_path / name).write_text(f'{json.dumps(rest)[:-1]}, "{key}": {value}}}\n')
    ledger = Ledger(tmp_path)
    ledger.begin(1, 1, 0.0)
    assert 0 <= ledger.lost_seconds < 60
    ledger.end("completed")
    expected = ["killed", "completed"] if key == "reason" else ["completed"]
    assert [line["state"] for line in lines(tmp_path)] == expected
    assert status(tmp_path)["state"] == "completed"


@pytest.mark.parametrize("key", ["epoch", "from_step", "step"])
def test_a_status_without_its_position_ends_no_run(tmp_path: Path, key: str) -> None:
    """Though it says that the attempt had begun to train."""
    Ledger(tmp_path).begin(1, 1, 0.0)
    line = status(tmp_path)
    del line[key]
    (tmp_path / STATUS_JSON).write_text(json.dumps(line))
    Ledger(tmp_path).begin(1, 1, 0.0)


def test_numbers_go_on_behind_a_damaged_line(tmp_path: Path) -> None:
    """No attempt takes the number of another, and no killed one is forgotten."""
    for _ in range(4):
        Ledger(tmp_path).begin(0, 0, 0.0)
    first, *others = (tmp_path / ATTEMPTS_JSONL).read_text().splitlines()
    (tmp_path / ATTEMPTS_JSONL).write_text("\n".join([first[:40], *others]))
    for _ in range(3):
        Ledger(tmp_path).begin(0, 0, 0.0)
    assert [line["attempt"] for line in lines(tmp_path)] == [2, 3, 4, 5, 6]
    assert status(tmp_path)["attempt"] == 7


@pytest.mark.parametrize("state", ["killed", "interrupted"])
def test_numbers_go_on_behind_lost_lines(tmp_path: Path, state: str) -> None:
    """From that of the status, which is all that is left."""
    for _ in range(3):
        last = Ledger(tmp_path)
        last.begin(0, 0, 0.0)
    if state != "killed":
        last.end(state)
    (tmp_path / ATTEMPTS_JSONL).unlink()
    for _ in range(2):
        Ledger(tmp_path).begin(0, 0, 0.0)
    assert [(line["attempt"], line["state"]) for line in lines(tmp_path)] == [
        (3, state),
        (4, "killed"),
    ]
    assert Ledger(tmp_path).number == 6


def test_a_book_that_cannot_be_read_is_not_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system that hesitates costs no line of an earlier attempt."""
    for _ in range(3):
        Ledger(tmp_path).end("interrupted")
    before = (tmp_path / "attempts.jsonl").read_text()
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    real, left = Path.read_text, [1000]

    def read(self: Path, **keywords: Any) -> str:
        left[0] -= 1
        if left[0] > 0:
            raise OSError(116, "Stale file handle")
        return real(self, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read)
        Ledger(tmp_path).end("interrupted")
        assert real(tmp_path / "attempts.jsonl") == before
        left[0] = 2
        Ledger(tmp_path).end("interrupted")
    assert len((tmp_path / "attempts.jsonl").read_text().splitlines()) > 3
