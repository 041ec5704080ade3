"""One array on disk as a .npy file, and its entry in the manifest of a data set."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from outlast.errors import DataError
from outlast.files import TEMPORARY_MARK, sync_folder

Entry = dict[str, Any]


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
        "mtime_ns": file.stat().st_mtime_ns,
        "sha256": digest_file(file),
    }


def open_array(folder: Path, entry: Entry) -> np.ndarray:
    """Open an array as a memory map, after a comparison with its entry.

    Raises:
        DataError: The file is missing, or no longer what was prepared.
    """
    path = Path(entry["file"]) if entry.get("in_place") else folder / entry["file"]
    try:
        # "c": changes would stay in this process. torch.from_numpy warns of read-only arrays
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
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
    if stat.st_mtime_ns != entry["mtime_ns"] and digest_file(path) != entry["sha256"]:
        raise DataError(f"{path} has other values than when it was prepared; run prepare again")
    return array
