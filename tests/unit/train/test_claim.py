"""The claim on a run folder: who gets it, when it expires, and what a late owner can still do."""

import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from claims import third_owner

from outlast.errors import LostClaimError
from outlast.files import write_atomically
from outlast.train import owner as owner_module
from outlast.train.claim import Claim


def claim_of(folder: Path, number: int) -> dict[str, Any]:
    """The content of a claim file."""
    content: dict[str, Any] = json.loads((folder / f".claim-{number:06}.json").read_text())
    return content


def put_claim(folder: Path, number: int, **changes: Any) -> None:
    """Write the claim of an owner elsewhere: another machine, a process that no one can see."""
    owner = {
        "token": "else",
        "beat": 0,
        "released": False,
        "host": "node7",
        "machine": "another boot",
        "pid": 4711,
        "process": "1",
        "job": None,
    }
    (folder / f".writer-{number:06}-else").mkdir(exist_ok=True)
    (folder / f".claim-{number:06}.json").write_text(json.dumps(owner | changes))


def test_a_free_folder_is_claimed_at_once(tmp_path: Path) -> None:
    """And again after its owner has left; the number goes up and old claims are gone."""
    for number in (1, 2, 3):
        claim = Claim(tmp_path)
        assert claim.try_acquire() is None
        assert claim_of(tmp_path, number)["pid"] == os.getpid()
        write_atomically(tmp_path / "state", b"x", staging=claim.staging)
        claim.release()
        assert claim_of(tmp_path, number)["released"]
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f".claim-{number:06}.json",
            "state",
        ]


def test_a_living_owner_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By process, host and job; nothing of his is touched."""
    monkeypatch.setenv("SLURM_JOB_ID", "123")
    first = Claim(tmp_path)
    first.try_acquire()
    before = sorted(tmp_path.rglob("*"))
    owner = Claim(tmp_path).try_acquire()
    assert owner == f"process {os.getpid()} on {os.uname().nodename}, job 123"
    assert sorted(tmp_path.rglob("*")) == before
    first.ensure()
    first.release()


def test_a_dead_process_of_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    """Without waiting for its beats; also when its id belongs to another process by now."""
    here = owner_module.machine()
    assert here
    put_claim(tmp_path, 4, machine=here, pid=2**22 + 1)
    claim = Claim(tmp_path)
    assert claim.try_acquire() is None
    claim.release()
    put_claim(tmp_path, 9, machine=here, pid=os.getpid(), process="1")
    assert Claim(tmp_path).try_acquire() is None


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_an_owner_without_a_beat_is_followed_in_bounded_time(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another machine, or a claim that nobody can read."""
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "0.4")
    put_claim(tmp_path, 1)
    if text is not None:
        (tmp_path / ".claim-000001.json").write_text(text)
    claim, started = Claim(tmp_path), time.monotonic()
    assert claim.try_acquire()
    while claim.try_acquire():
        assert time.monotonic() - started < 5
        time.sleep(0.02)
    assert time.monotonic() - started > 0.4
    assert claim.staging.is_dir()


def test_an_owner_who_beats_is_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes, and though nobody can see his process."""
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "0.3")
    claim = Claim(tmp_path)
    for beat in range(12):
        put_claim(tmp_path, 1, beat=beat)
        assert claim.try_acquire() == "process 4711 on node7"
        time.sleep(0.1)
    first = Claim(tmp_path)
    put_claim(tmp_path, 1, released=True)
    assert first.try_acquire() is None  # this one beats by itself
    other = Claim(tmp_path)
    monkeypatch.setattr(owner_module, "machine", lambda: "")
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert other.try_acquire()
        time.sleep(0.02)
    first.release()
    assert other.try_acquire() is None


def test_a_late_owner_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """His rename fails, even where he has looked before and was paused in between."""
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "0.2")
    late = Claim(tmp_path)
    late.try_acquire()
    late._stop.set()  # paused: no beats
    staging = late.staging
    temporary = staging / "state-tmp"
    temporary.write_bytes(b"old")
    late.ensure()
    monkeypatch.setattr(owner_module, "_is_dead_here", lambda owner: False)
    new = Claim(tmp_path)
    while new.try_acquire():
        time.sleep(0.02)
    write_atomically(tmp_path / "state", b"new", staging=new.staging)
    with pytest.raises(FileNotFoundError):
        temporary.replace(tmp_path / "state")
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "state", b"old", staging=staging)
    with pytest.raises(LostClaimError, match=rf"process {os.getpid()} on .* has taken this run"):
        late.ensure()
    late.release()
    assert not claim_of(tmp_path, 2)["released"], "the claim of another is not given free"
    new.release()
    with pytest.raises(LostClaimError):
        late.ensure()  # also when the other has finished
    assert (tmp_path / "state").read_bytes() == b"new"


def test_a_removed_folder_is_claimed_again(tmp_path: Path) -> None:
    """By who still trains, unless another one has come first."""
    folder = tmp_path / "run"
    folder.mkdir()
    claim = Claim(folder)
    claim.try_acquire()
    folder.rename(tmp_path / "gone")
    claim.ensure()
    write_atomically(folder / "state", b"x", staging=claim.staging)
    assert Claim(folder).try_acquire()
    shutil.rmtree(claim.staging)
    claim.ensure()
    folder.rename(tmp_path / "gone too")
    folder.mkdir()
    other = Claim(folder)
    assert other.try_acquire() is None
    with pytest.raises(LostClaimError):  # both are number 1
        claim.ensure()
    other.release()


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is made by exclusive creation there."""

    def refuse(*_: Any) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    first = Claim(tmp_path)
    assert first.try_acquire() is None
    assert Claim(tmp_path).try_acquire()
    first.release()


def test_a_listing_that_lags_behind_makes_no_second_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of a network file system may not see yet what another has made."""
    owner = third_owner(tmp_path)
    real, asked = Claim._look, []

    def stale(self: Claim) -> tuple[dict[int, Path], dict[int, Path]]:
        asked.append(1)
        return ({}, {}) if len(asked) == 1 else real(self)

    monkeypatch.setattr(Claim, "_look", stale)
    assert Claim(tmp_path).try_acquire()
    assert len(asked) == 2, "looked again after it had made a claim"
    monkeypatch.undo()
    assert [path.name for path in tmp_path.glob(".claim-*")] == [".claim-000003.json"]
    assert list(tmp_path.glob(".writer-*")) == [owner.staging]
    owner.ensure()
    owner.release()


def race(folder: Path, start: Any, found: Any) -> None:
    """Try to claim a folder at the same instant as others."""
    claim = Claim(folder)
    start.wait()
    found.put(claim.try_acquire() is None)
    start.wait()


@pytest.mark.parametrize("attempt", range(5))
def test_of_many_who_come_at_once_one_gets_it(attempt: int, tmp_path: Path) -> None:
    """A free folder, and one whose owner has died."""
    if attempt % 2:
        put_claim(tmp_path, 3, machine=owner_module.machine(), pid=2**22 + 1)
    context, number = multiprocessing.get_context("fork"), 8
    start, found = context.Barrier(number), context.Queue()
    racers = [context.Process(target=race, args=(tmp_path, start, found)) for _ in range(number)]
    for racer in racers:
        racer.start()
    results = [found.get(timeout=30) for _ in racers]
    for racer in racers:
        racer.join(30)
    assert sum(results) == 1
    assert len(list(tmp_path.glob(".writer-*"))) == 1


@pytest.mark.parametrize("kind", ["number", "pipe", "folder", "pid", "deep"])
def test_an_odd_file_in_place_of_a_claim_ends_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as an owner without a beat, and is followed in time."""
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "0.2")
    path = tmp_path / f".claim-{'999999' if kind == 'number' else '000007'}.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        text = {"deep": "[" * 100_000, "pid": json.dumps({"machine": owner_module.machine()})}
        path.write_text(text.get(kind, ""))
    claim, deadline = Claim(tmp_path), time.monotonic() + 20
    while claim.try_acquire():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    claim.ensure()
    claim.release()
    assert Claim(tmp_path).try_acquire() is None
