"""A data set on disk: named .npy arrays with one first dimension, and a manifest.

`prepare` writes it once; every rank of every run opens the same pages as memory maps.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outlast.data.array_files import (
    Entry,
    describe_in_place,
    digest_file,
    file_state,
    open_array,
    path_of,
    write_array,
)
from outlast.data.dataset import DataSet
from outlast.data.labels import read_labels
from outlast.data.normalize import Normalization
from outlast.data.roles import ROLES, Roles
from outlast.data.sources import Source, read
from outlast.data.splits import SPLITS, check_no_leak
from outlast.errors import DataError
from outlast.files import remove_leftovers, write_json
from outlast.sections import DataSection

FORMAT = 4
MANIFEST = "manifest.json"
NORMALIZATION = "normalization.npz"
# keys of `data:` that a prepared folder and a run must have in common
CHECKED = {"normalize", "split", "threshold", *ROLES}


def read_data(section: DataSection) -> tuple[DataSet, dict[str, Path]]:
    """Read, check and split what the `data:` section names. Writes nothing.

    Returns:
        The data set, and the .npy file of each input that is used where it lies.

    Raises:
        DataError: The source cannot be used as the section says.
    """
    source = read(section)
    _check_names(source)
    labels = read_labels(source, section)
    data = DataSet.from_arrays(
        source.inputs,
        labels.label,
        labels.splits,
        labels.classes,
        section.normalize,
        labels.roles,
    )
    return data, source.files


def prepare(section: DataSection, folder: Path) -> dict[str, Any]:
    """Read, check, split and store a data set in ``folder``; return the manifest.

    Nothing is written before every check has passed. The manifest comes last: a folder with one
    is complete. Arrays of a folder of .npy files stay where they are.

    Raises:
        DataError: The source cannot be used as the section says.
    """
    data, in_place = read_data(section)
    _check_folder(section, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    remove_leftovers(folder)
    manifest = {
        "format": FORMAT,
        "inputs": {
            name: describe_in_place(in_place[name], array)
            if name in in_place
            else write_array(folder / f"{name}.npy", array)
            for name, array in data.inputs.items()
        },
        "label": write_array(folder / "label.npy", data.label),
        "splits": {
            key: write_array(folder / f"split_{key}.npy", rows) for key, rows in data.splits.items()
        },
        "roles": {
            role: write_array(folder / f"role_{role}.npy", values)
            for role, values in data.roles.values.items()
        },
        "role_names": data.roles.names,
        "classes": data.classes,
        "counts": {key: _class_counts(data, rows) for key, rows in data.splits.items()},
        "normalize": section.normalize,
        "normalization": _write_normalization(folder / NORMALIZATION, data.normalization),
        "section": section.model_dump(mode="json", include=CHECKED),
        "content": data.content,
        "role_content": data.role_content,
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def open_data(folder: Path) -> DataSet:
    """Open a prepared data set as memory maps.

    Files are held against the manifest: by size, shape and dtype, and by their bytes when the
    time of their last change is another.

    Raises:
        DataError: Not prepared, or a file is missing or no longer what was prepared.
    """
    manifest = _read_manifest(folder)
    entries = [
        *manifest["inputs"].values(),
        manifest["label"],
        *manifest["splits"].values(),
        *manifest["roles"].values(),
    ]
    digests = {path_of(folder, entry): str(entry["sha256"]) for entry in entries}
    opened = {path: (file_state(path), sha) for path, sha in digests.items() if path.exists()}
    inputs = {name: open_array(folder, entry) for name, entry in manifest["inputs"].items()}
    roles = {role: open_array(folder, entry) for role, entry in manifest["roles"].items()}
    data = DataSet(
        inputs=inputs,
        label=open_array(folder, manifest["label"]),
        classes=manifest["classes"],
        splits={key: open_array(folder, manifest["splits"][key]) for key in SPLITS},
        normalization=_read_normalization(folder, manifest, list(inputs)),
        content=manifest["content"],
        roles=Roles(roles, manifest["role_names"]),
        role_content=manifest["role_content"],
        opened=opened,
    )
    check_no_leak(data.splits, data.roles.get("group"))
    return data


# --- before writing


def _check_folder(section: DataSection, folder: Path) -> None:
    if Path(section.source).expanduser().resolve() == folder.resolve():
        raise DataError(
            f"data.source: {section.source!r} is the folder that prepared data are written to,"
            " which would overwrite the label; move the source elsewhere"
        )


def _check_names(source: Source) -> None:
    taken = {"label", *(f"split_{key}" for key in SPLITS), *(f"role_{role}" for role in ROLES)}
    for name in source.inputs.keys() - source.files.keys():
        if name in taken or not re.fullmatch(r"\w[\w .+-]*", name):
            raise DataError(
                f"data.inputs: an array cannot be stored as {name!r}.npy; use a name of letters,"
                f" digits and _, and none of {', '.join(sorted(taken))}"
            )


def _class_counts(data: DataSet, rows: np.ndarray) -> dict[str, int]:
    counts = np.bincount(data.label[rows], minlength=len(data.classes))
    return dict(zip(data.classes, counts.tolist(), strict=True))


def check_prepared(folder: Path, section: DataSection) -> None:
    """Compare a prepared folder with the config of a run.

    Raises:
        DataError: It was prepared with another split, normalization or role.
    """
    prepared = _read_manifest(folder)["section"]
    wanted = section.model_dump(mode="json", include=CHECKED)
    for key, value in wanted.items():
        if prepared[key] != value:
            raise DataError(
                f"data.{key}: the config says {value}, and {folder} was prepared with"
                f" {prepared[key]}; run prepare again"
            )


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); run prepare") from error
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {manifest.get('format')}, and this version reads {FORMAT};"
            " run prepare again"
        )
    return manifest


def _write_normalization(path: Path, normalization: Normalization) -> Entry | None:
    path.unlink(missing_ok=True)
    moments = normalization.moments()
    if not moments:
        return None
    arrays: dict[str, Any] = {f"{name}.mean": mean for name, mean, _ in moments}
    arrays |= {f"{name}.std": std for name, _, std in moments}
    np.savez(path, **arrays)  # the manifest that makes it count is written after it
    return {"file": path.name, "sha256": digest_file(path)}


def _read_normalization(folder: Path, manifest: Entry, names: list[str]) -> Normalization:
    kind, entry = manifest["normalize"], manifest["normalization"]
    if entry is None:
        return Normalization(kind, tuple(names))
    path = folder / str(entry["file"])
    try:
        if digest_file(path) != entry["sha256"]:
            raise ValueError("it has other values than when it was prepared")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {
                part: [torch.from_numpy(stored[f"{name}.{part}"]) for name in names]
                for part in ("mean", "std")
            }
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}); run prepare again") from error
    return Normalization.from_state({"kind": kind, "names": names, **arrays})
