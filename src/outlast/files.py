"""Files that are either the old one or the new one, never half of one; and digests of content."""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from outlast.faults import reach

TEMPORARY_MARK = ".outlast-tmp-"


class UnconfirmedError(OSError):
    """The new file has its name, but the disk has not confirmed it: a power cut may undo that."""


def write_atomically(
    path: Path,
    content: bytes | Callable[[BinaryIO], None],
    previous: Path | None = None,
    staging: Path | None = None,
) -> None:
    """Replace ``path`` by ``content``, or leave it as it was.

    Temporary file, fsync, rename, fsync of the folder: after a power cut the name leads to the
    old bytes or to the new ones. The temporary name holds the process id, so that two writers
    never share one.

    Args:
        path: The file.
        content: Its new bytes, or what writes them into the open file.
        previous: Name under which the old file is kept. At each instant both are whole files, and
            two different ones: what had this name before keeps it until the new file is safe.
        staging: Folder of the temporary files, on the same file system. Default: that of ``path``.

    Raises:
        UnconfirmedError: The new file is in place, and perhaps not after a power cut.
        OSError: The disk is full or not writable. The old files are intact then.
    """
    temporary, second = _temporary(path, staging), None
    try:
        _write(temporary, content)
        if previous is not None and path.exists():
            second = _temporary(previous, staging)
            _give_second_name(path, second)
        reach("replace")
        temporary.replace(path)
    except BaseException:
        _remove(temporary, second)
        raise
    try:
        reach("replaced")
        sync_folder(path.parent)
        if previous is not None and second is not None:
            reach("previous")
            second.replace(previous)
    except OSError as error:
        raise UnconfirmedError(error.errno, error.strerror, error.filename) from error
    finally:
        _remove(second)  # still there where both are names of one file, too


def _temporary(path: Path, staging: Path | None) -> Path:
    return (staging or path.parent) / f"{path.name}{TEMPORARY_MARK}{os.getpid()}"


def _write(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file, to the disk."""
    with path.open("wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content[: len(content) // 2])
            reach("write")
            file.write(content[len(content) // 2 :])
        file.flush()
        reach("fsync")
        os.fsync(file.fileno())


def _give_second_name(path: Path, second: Path) -> None:
    """Let ``second`` be a name of the file at ``path``; else a copy of it, on the disk."""
    second.unlink(missing_ok=True)
    try:
        second.hardlink_to(path)
    except OSError:  # a file system without hard links
        with path.open("rb") as old, second.open("wb") as new:
            shutil.copyfileobj(old, new)
            new.flush()
            os.fsync(new.fileno())


def _remove(*leftovers: Path | None) -> None:
    for leftover in leftovers:
        if leftover is not None:
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)


def write_json(path: Path, content: Any, staging: Path | None = None) -> None:
    """Write ``content`` as JSON, atomically. NaN and infinity are refused: JSON has neither."""
    text = json.dumps(content, indent=1, allow_nan=False)
    write_atomically(path, (text + "\n").encode(), staging=staging)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; None without a file, or where it is no JSON."""
    try:
        # not a pipe, which would be waited for
        return parse_json(path.read_bytes()) if path.is_file() else None
    except OSError:
        return None


def parse_json(text: str | bytes) -> Any:
    """Return the content of a text that may be anything; None where it is no JSON.

    NaN and infinity are none, as in :func:`write_json`, nor is what is nested beyond all sense.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable, on file systems that can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove the temporary files that a killed writer left in ``folder``; return them."""
    leftovers = sorted(folder.glob(f"*{TEMPORARY_MARK}*"))
    _remove(*leftovers)
    return leftovers


def digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def digest_values(values: Any) -> str:
    """Return the SHA-256 of plain values (dict, list, str, number): key order does not matter."""
    return digest(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


_END_OF_ZIP = b"PK\x05\x06"
_PIECE = 1 << 20
_SEAL = b"outlast sha256 "


def seal(archive: bytes) -> bytes:
    """Return a zip archive (what ``torch.save`` writes) with the digest of its bytes inside.

    The digest becomes the archive's comment, which every zip reader skips: ``torch.load`` reads
    the sealed file as before. No torch needed here.
    """
    assert archive[-22:-18] == _END_OF_ZIP, "a zip archive without a comment is needed"
    comment = _SEAL + hashlib.sha256(archive).hexdigest().encode()
    return archive[:-2] + len(comment).to_bytes(2, "little") + comment


def seal_into(file: BinaryIO, save: Callable[[BinaryIO], None]) -> None:
    """Write into ``file`` what :func:`seal` would make, without ever holding it in memory.

    Args:
        file: Open, empty, and seekable.
        save: Writes a zip archive without a comment, into the file that it is given.

    Raises:
        OSError: Of ``file``. ``save`` does not see it: not every writer of archives copes.
    """
    archive = _Archive(file)
    with io.BufferedWriter(archive, _PIECE) as buffered:
        save(buffered)
    if archive.error is not None:
        raise archive.error
    assert archive.end[:4] == _END_OF_ZIP, "a zip archive without a comment is needed"
    comment = _SEAL + archive.hash.hexdigest().encode()
    file.seek(-2, os.SEEK_CUR)
    file.write(len(comment).to_bytes(2, "little") + comment)


class _Archive(io.RawIOBase):
    """Passes on what is written, and hashes it; no other thread waits meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash, self.end = file, hashlib.sha256(), b""
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        # piece by piece: what has just been hashed is still in the cache of the processor
        piece = memoryview(content)[:_PIECE]
        if self.error is None:
            try:
                self._file.write(piece[: len(piece) // 2])
                reach("write")
                self._file.write(piece[len(piece) // 2 :])
            except OSError as error:
                self.error = error
            self.hash.update(piece)
            self.end = (self.end + bytes(piece[-22:]))[-22:]
        return len(piece)


def is_intact(sealed: bytes) -> bool:
    """Tell whether ``sealed`` is what :func:`seal` made, to the last bit."""
    size = len(_SEAL) + 64
    archive, comment = sealed[:-size], sealed[-size:]
    if not comment.startswith(_SEAL) or archive[-2:] != size.to_bytes(2, "little"):
        return False
    original = hashlib.sha256(archive[:-2])
    original.update(b"\0\0")
    return original.hexdigest().encode() == comment[len(_SEAL) :]
