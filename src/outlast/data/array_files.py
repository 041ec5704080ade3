"""One array on disk as a .npy file, and its entry in the manifest of a data set."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from outlast.errors import DataError
from outlast.files import TEMPORARY_MARK, sync_folder

Entry = dict[str, Any]
# device, inode, size, time of the last change of the content
FileState = tuple[int, int, int, int]


def write_array(path: Path, array: np.ndarray) -> Entry:
    """Save an array and describe it. By a rename: a run that has the old file mapped keeps it."""
    temporary = path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}")
    with temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
    return _describe(path.name, path, array)


def describe_in_place(file: Path, array: np.ndarray) -> Entry:
    """Describe a file that is used where it lies."""
    # a link into the project is kept: what it points at may differ between machines
    absolute = file.resolve() if ".." in file.parts else file.absolute()
    below = absolute.is_relative_to(Path.cwd())
    name = absolute.relative_to(Path.cwd()) if below else absolute
    return _describe(str(name), file, array) | {"in_place": True}


def digest_file(file: Path) -> str:
    """Return the SHA-256 of a file's bytes as hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _describe(name: str, file: Path, array: np.ndarray) -> Entry:
    return {
        "file": name,
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "bytes": file.stat().st_size,
        "changed": _last_change(file),
        "sha256": digest_file(file),
    }


def _last_change(file: Path) -> list[int]:
    """Return when content and inode were last changed: tools that copy set the first one back."""
    stat = file.stat()
    return [stat.st_mtime_ns, stat.st_ctime_ns]


def path_of(folder: Path, entry: Entry) -> Path:
    """Return where the file of an entry lies."""
    return Path(entry["file"]) if entry.get("in_place") else folder / entry["file"]


def file_state(path: Path) -> FileState:
    """Return what shows that somebody has written to a file, or replaced it."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def open_array(folder: Path, entry: Entry) -> np.ndarray:
    """Open an array as a memory map, after a comparison with its entry.

    Raises:
        DataError: The file is missing, or no longer what was prepared.
    """
    path = path_of(folder, entry)
    try:
        # not "c", which torch would take without a warning: Linux counts a private map that may
        # be written to as memory, and refuses one that is larger than it has
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be opened ({error}); run prepare again") from error
    stat = path.stat()
    found = {"shape": list(array.shape), "dtype": array.dtype.name, "bytes": stat.st_size}
    for key, value in found.items():
        if value != entry[key]:
            raise DataError(
                f"{path} has {key} {value}, and had {entry[key]} when it was prepared;"
                " run prepare again"
            )
    # a touched or copied file is read again: what counts is its content
    if _last_change(path) != entry["changed"] and digest_file(path) != entry["sha256"]:
        raise DataError(f"{path} has other values than when it was prepared; run prepare again")
    return array
