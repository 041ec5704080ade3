"""A file and the one before it: two whole and different ones, at any instant of a write."""

import os
from pathlib import Path
from typing import Any

import pytest

from outlast import files
from outlast.files import TEMPORARY_MARK, UnconfirmedError, write_atomically

ORDER = ["write", "fsync", "replace", "replaced", "previous"]


def no_links(*_: Any) -> None:
    """In place of Path.hardlink_to."""
    raise PermissionError("no hard links here")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("kind", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("point", ORDER)
def test_there_are_two_generations_at_any_instant(
    point: str, kind: BaseException, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two different ones, and the newest; as well where the write ends there with an error."""
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    path, previous, staging = tmp_path / "state", tmp_path / "state.prev", tmp_path / "staging"
    staging.mkdir()
    for content in (b"one", b"two"):
        write_atomically(path, content, previous, staging)
    seen = []

    def reach(name: str) -> None:
        seen.append((name, path.read_bytes(), previous.read_bytes()))
        if name == point:
            raise kind

    monkeypatch.setattr(files, "reach", reach)
    is_in_place = point in ("replaced", "previous")
    is_error = isinstance(kind, OSError)
    expected = UnconfirmedError if is_in_place and is_error else type(kind)
    with pytest.raises(expected) as caught:
        write_atomically(path, b"three", previous, staging)
    assert type(caught.value) is expected
    assert str(caught.value) == str(kind)
    assert [name for name, *_ in seen] == ORDER[: ORDER.index(point) + 1]
    for name, new, old in seen:
        assert (new, old) == (b"three" if name in ("replaced", "previous") else b"two", b"one")
    assert path.read_bytes() == (b"three" if is_in_place else b"two")
    assert previous.read_bytes() == b"one"
    assert not list(staging.iterdir())
    monkeypatch.undo()
    write_atomically(path, b"four", previous, staging)
    assert (path.read_bytes(), previous.read_bytes()) == (
        b"four",
        b"three" if is_in_place else b"two",
    )


def test_two_names_of_one_file_become_two_files(tmp_path: Path) -> None:
    """As an earlier version has left them where it was killed: a rename alone changes nothing."""
    path, previous = tmp_path / "state", tmp_path / "state.prev"
    path.write_bytes(b"one")
    previous.hardlink_to(path)
    write_atomically(path, b"two", previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"two", b"one")
    assert sorted(tmp_path.iterdir()) == [path, previous]


def test_a_copy_of_the_generation_before_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no hard links; a disk too full for the copy leaves everything as it was."""
    path, previous, synced, real = tmp_path / "state", tmp_path / "prev", [], os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        real(descriptor)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    monkeypatch.setattr(os, "fsync", fsync)
    for content in (b"one", b"two"):
        write_atomically(path, content, previous)
    mark = f"{TEMPORARY_MARK}{os.getpid()}"
    assert synced[2:] == [f"state{mark}", f"prev{mark}", tmp_path.name]
    monkeypatch.setattr(files.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"three", previous)
    assert (path.read_bytes(), previous.read_bytes()) == (b"two", b"one")
    assert sorted(tmp_path.iterdir()) == [previous, path]
