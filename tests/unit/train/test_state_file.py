"""Reading a state: a file system that hesitates costs seconds, never the state."""

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from test_checkpoint import OTHER, RECIPE, state

from outlast.errors import CheckpointError
from outlast.files import seal
from outlast.train import state_file
from outlast.train.checkpoint import Checkpoints
from outlast.train.claim import Claim

FILES = ["model_resume.prev.pt", "model_resume.pt"]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    """Two generations, and a reader that does not wait long."""
    monkeypatch.setattr(state_file.time, "sleep", lambda seconds: None)
    checkpoints = Checkpoints(tmp_path)
    for epoch in (1, 2):
        checkpoints.save(state(epoch))
    return checkpoints


def fail(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    """Let so many reads of a file fail."""
    real, left = Path.read_bytes, [times]

    def read(self: Path) -> bytes:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(number, "fails")
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_a_file_system_that_hesitates_is_waited_for(
    number: int, saved: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three failures, and then the state as if nothing had been."""
    fail(monkeypatch, number, 3)
    found, notes = saved.load(RECIPE)
    assert (found and found.epoch, notes) == (2, [])


def test_a_state_that_cannot_be_read_ends_the_attempt(
    saved: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither set aside nor started over: a later attempt finds it as good as ever."""
    with monkeypatch.context() as patch:
        fail(patch, errno.EACCES, 1000)
        with pytest.raises(CheckpointError, match=r"model_resume\.pt cannot be read now \(fails\)"):
            saved.load(RECIPE)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    found, _ = saved.load(RECIPE)
    assert found is not None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_no_damage(
    error: Exception, saved: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file is intact; the node is too small, now."""

    def load(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", load)
        with pytest.raises(CheckpointError, match="cannot be read now"):
            saved.load(RECIPE)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_file_of_absurd_size_is_told_of(saved: Checkpoints, tmp_path: Path) -> None:
    """A file system that has lost its mind, or a sparse copy of something else."""
    os.truncate(tmp_path / "model_resume.pt", 2**42)
    with pytest.raises(CheckpointError, match=r"too little memory for a file of its size"):
        saved.load(RECIPE)


def test_a_bad_sector_is_looked_at_again(
    saved: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """EIO for good: the run starts over, but what can be read later is taken back."""
    with monkeypatch.context() as patch:
        fail(patch, errno.EIO, 1000)
        found, notes = saved.load(RECIPE)
    assert found is None
    assert "model_resume.unreadable-" in notes[0]
    assert len(list(tmp_path.glob("model_resume.unreadable-*.pt"))) == 2
    found, notes = saved.load(OTHER)
    assert (found, notes) == (None, []), "not of another recipe"
    found, notes = saved.load(RECIPE)
    assert found is not None
    assert found.epoch == 2
    assert "taking it back" in notes[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"history": 5},
        {"epoch": "2"},
        {"recipe": [1]},
        {"optimizer": 5},
        {"selection": None},
        {"sums": [1]},
        {"step": -3},
        {"epoch": -1},
    ],
)
def test_a_sealed_file_with_other_content_is_set_aside(
    change: dict[str, Any], saved: Checkpoints, tmp_path: Path
) -> None:
    """The seal is right and the content is not: the generation before is used."""
    buffer = io.BytesIO()
    torch.save(state(3).as_dict() | change, buffer)
    saved.current.write_bytes(seal(buffer.getvalue()))
    found, notes = saved.load(RECIPE)
    assert found is not None
    assert found.epoch == 1
    assert "no state of outlast" in notes[0]


def test_a_state_of_another_version_has_a_name_that_says_so(
    saved: Checkpoints, tmp_path: Path
) -> None:
    """It is not damaged: the version that wrote it can still use it."""
    buffer = io.BytesIO()
    torch.save({"format": 3}, buffer)
    saved.current.write_bytes(seal(buffer.getvalue()))
    saved.load(RECIPE)
    assert len(list(tmp_path.glob("model_resume.format-3-*.pt"))) == 1


def test_a_late_owner_renames_nothing(saved: Checkpoints, tmp_path: Path) -> None:
    """Paused between his look and his rename, while another one has taken over and saved."""
    owner = Claim(tmp_path)
    owner.try_acquire()
    late = Checkpoints(tmp_path, owner)
    good = saved.current.read_bytes()
    real = Claim.ensure

    def overtaken(self: Claim) -> None:
        real(self)
        owner.staging.rename(tmp_path / ".fenced-x")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claim, "ensure", overtaken)
        with pytest.raises(FileNotFoundError):
            late._rename(late.current, tmp_path / "model_resume.damaged-x.pt")
    assert saved.current.read_bytes() == good
    assert not (tmp_path / "model_resume.damaged-x.pt").exists()
    owner.release()


@pytest.mark.parametrize("content", [{"format": 10**300}, {"format": "a/b"}, {"format": True}, 5])
def test_an_odd_format_is_set_aside_all_the_same(
    content: Any, saved: Checkpoints, tmp_path: Path
) -> None:
    """Under a name that any file system takes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    saved.current.write_bytes(seal(buffer.getvalue()))
    found, _ = saved.load(RECIPE)
    assert found is not None
    assert found.epoch == 1


def test_no_word_about_memory_in_a_file_keeps_it(saved: Checkpoints, tmp_path: Path) -> None:
    """A hostile pickle may name what it likes: it is set aside, and nothing of it is called."""
    buffer = io.BytesIO()
    torch.save({"format": Hostile()}, buffer)
    saved.current.write_bytes(seal(buffer.getvalue()))
    found, notes = saved.load(RECIPE)
    assert found is not None
    assert "no state of outlast" in notes[0]
    assert not Path("DefaultCPUAllocator").exists()


class Hostile:
    """Its pickle calls a function whose name sounds like a lack of memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("DefaultCPUAllocator"),)
