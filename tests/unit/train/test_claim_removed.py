"""Claims and folders that somebody removes: one writer all the same, and no work lost."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from claims import third_owner

from outlast.errors import LostClaimError
from outlast.files import write_atomically
from outlast.train import claim as claim_module
from outlast.train.claim import Claim


def test_removed_claims_make_no_second_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes the claim files alone, as one does with a stale lock; the owner wakes."""
    owner = third_owner(tmp_path)
    owner._stop.set()  # paused
    for path in tmp_path.glob(".claim-*"):
        path.unlink()
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "0.2")
    other = Claim(tmp_path)
    assert f"process {os.getpid()} " in (other.try_acquire() or ""), "known by its folder"
    while other.try_acquire():
        time.sleep(0.05)
    with pytest.raises(FileNotFoundError):  # whatever he believes, between his look and his rename
        write_atomically(tmp_path / "state", b"late", staging=owner.staging)
    with pytest.raises(LostClaimError):
        owner.ensure()
    other.ensure()


def test_removed_claims_of_a_living_owner_are_made_again(tmp_path: Path) -> None:
    """Nobody has come meanwhile: he goes on, and is seen again."""
    owner = Claim(tmp_path)
    owner.try_acquire()
    for path in tmp_path.glob(".claim-*"):
        path.unlink()
    owner.ensure()
    assert "trains" not in (Claim(tmp_path).try_acquire() or "trains")
    shutil.rmtree(owner.staging)
    owner.ensure()
    write_atomically(tmp_path / "state", b"x", staging=owner.staging)


def test_who_claims_again_is_one_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder goes, another starts between the owner's look and his claim: one writes."""
    folder = tmp_path / "run"
    folder.mkdir()
    owner, other = Claim(folder), Claim(folder)
    owner.try_acquire()
    folder.rename(tmp_path / "gone")
    real = Claim._take

    def late(self: Claim, number: int) -> bool:
        if self is owner:
            monkeypatch.setattr(Claim, "_take", real)
            assert other.try_acquire() is None
        return real(self, number)

    monkeypatch.setattr(Claim, "_take", late)
    lost = []
    for claim in (owner, other):
        try:
            claim.ensure()
        except LostClaimError:
            lost.append(claim)
    assert len(lost) == 1
    with pytest.raises(LostClaimError):
        lost[0].ensure()
    ({owner, other} - set(lost)).pop().ensure()


@pytest.mark.parametrize("removed", [".claim-*", ".writer-*", "*"])
def test_a_full_disk_while_it_is_claimed_anew_is_no_loss(
    removed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look makes it good: nothing half made is in the way."""
    folder = tmp_path / "run"
    folder.mkdir()
    owner = Claim(folder)
    owner.try_acquire()
    for path in [folder] if removed == "*" else folder.glob(removed):
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def full(self: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                owner.ensure()
    owner.ensure()
    write_atomically(folder / "state", b"x", staging=owner.staging)
    assert not list(folder.glob(".contender-*"))


def test_a_folder_that_is_just_being_removed_is_claimed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rm -r` at work takes the contender's folder twice; nobody else is there."""
    owner = Claim(tmp_path)
    owner.try_acquire()
    shutil.rmtree(owner.staging)
    real, left = Path.mkdir, [2]

    def mkdir(self: Path, *arguments: Any, **keywords: Any) -> None:
        real(self, *arguments, **keywords)
        if self.name.startswith(".contender-") and left[0] > 0:
            left[0] -= 1
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    owner.ensure()
    assert left == [0]
    assert owner.staging.is_dir()


def test_a_claim_that_cannot_be_read_is_nobody_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder gone too, the owner neither goes on nor gives up: it looks again."""
    owner = Claim(tmp_path)
    owner.try_acquire()
    with monkeypatch.context() as patch:
        patch.setattr(claim_module, "read_json", lambda path: None)
        owner.ensure()
        shutil.rmtree(owner.staging)
        with pytest.raises(OSError, match="cannot be read"):
            owner.ensure()
    owner.ensure()
