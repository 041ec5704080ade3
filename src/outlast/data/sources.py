"""Readers: what `data.source` names becomes named arrays and a label, or is refused with a fix.

scikit-learn and pandas are imported where a reader needs them: each rank of a training imports
this package, and only `prepare` reads a source.
"""

import difflib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlast.data.arrays import (
    as_text,
    check_finite,
    check_label,
    check_rows,
    check_usable_in_place,
    converted,
    require,
)
from outlast.data.roles import named_roles, refuse_answer
from outlast.data.tables import SEPARATORS, read_frame, read_table
from outlast.errors import DataError
from outlast.sections import BUILT_IN_SOURCES, DataSection

if TYPE_CHECKING:
    import pandas as pd

# built-in of scikit-learn -> name of its input
BUILT_INS = dict.fromkeys(BUILT_IN_SOURCES, "features") | {"digits": "image"}


@dataclass(frozen=True, eq=False)
class Source:
    """What was read, checked, before it is split.

    Attributes:
        inputs: Name -> array (N, ...), in the order of the network's ``forward``.
        label: (N,) the values as given: numbers or text, none missing.
        class_names: Names of the classes 0..K-1, where the source brings them.
        files: Name -> .npy file, for inputs that are memory-mapped and used where they lie.
        roles: Role -> (N,) the values as given, for those that the config names.
    """

    inputs: dict[str, np.ndarray]
    label: np.ndarray
    class_names: list[str] | None = None
    files: dict[str, Path] = field(default_factory=dict)
    roles: dict[str, np.ndarray] = field(default_factory=dict)


def read(section: DataSection) -> Source:
    """Read and check what the `data:` section names.

    Arrays in memory come back as a dtype of ``DTYPES``, float64 as float32; those of a folder
    keep theirs and stay on disk.

    Raises:
        DataError: The source, an array, a column or a value cannot be used.
    """
    source = _read(section, with_inputs=True)
    check_rows(source.inputs, len(source.label))
    for name, array in source.inputs.items():
        check_finite(name, array)
    return source


def read_without_inputs(section: DataSection) -> Source:
    """Read and check label and roles alone: quick where the inputs are large.

    Raises:
        DataError: The source, the label or a role cannot be used.
    """
    return _read(section, with_inputs=False)


def _read(section: DataSection, with_inputs: bool) -> Source:
    if section.source in BUILT_INS:
        source = _read_built_in(section)
    else:
        path = _find(section.source)
        if path.is_dir():
            source = _read_folder(path, section, with_inputs)
        elif path.suffix.lower() in SEPARATORS:
            source = _of_table(read_frame(path, section, with_inputs), section, with_inputs)
        else:
            source = _read_archive(path, section, with_inputs)
    check_label(source.label, section.label, is_number=section.threshold is not None)
    return source


def _find(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix.lower() in {".npz", *SEPARATORS}):
        return path
    if path.exists():
        raise DataError(
            f"data.source: {source!r} is of a kind that is not read; give a .npz, .csv or .tsv"
            " file, or a folder of .npy files"
        )
    beside = sorted(file.name for file in path.parent.glob("*"))
    near = difflib.get_close_matches(path.name, [*BUILT_INS, *beside], n=1)
    built_ins = ", ".join(BUILT_INS)
    advice = f"did you mean {near[0]}?" if near else "relative paths start at the working directory"
    raise DataError(
        f"data.source: {source!r} does not exist, and is no built-in ({built_ins}); {advice}"
    )


def _read_built_in(section: DataSection) -> Source:
    from sklearn import datasets  # see the module's docstring

    if section.source == "diabetes":
        table = datasets.load_diabetes(scaled=False, as_frame=True).frame
        return _of_table(table.rename(columns={"target": "progression"}), section, True)
    require("data.label", section.label, ["label"])
    for role, column in named_roles(section).items():
        raise DataError(
            f"data.{role}: {column!r} is no column of the built-in {section.source}, which has"
            " none beside inputs and label; remove the key"
        )
    (name,) = _input_names(section, [BUILT_INS[section.source], "label"])
    bunch = getattr(datasets, f"load_{section.source}")()
    is_image = section.source == "digits"
    values = bunch.images[:, None] / 16.0 if is_image else bunch.data  # grey levels 0..16
    class_names = [str(target) for target in bunch.target_names]
    return Source({name: values.astype(np.float32)}, bunch.target, class_names)


def _read_archive(path: Path, section: DataSection, with_inputs: bool) -> Source:
    if not zipfile.is_zipfile(path):
        raise DataError(
            f"data.source: {str(path)!r} is no complete archive; write it with np.savez"
        )
    with np.load(path, allow_pickle=False) as archive:
        names = _input_names(section, archive.files) if with_inputs else []
        roles = named_roles(section)
        wanted = dict.fromkeys([*names, section.label, *roles.values()])
        arrays = {name: _load(archive.__getitem__, name) for name in wanted}
    return Source(
        inputs={name: converted(name, arrays[name]) for name in names},
        label=as_text(arrays[section.label]),
        roles={role: arrays[name] for role, name in roles.items()},
    )


def _read_folder(path: Path, section: DataSection, with_inputs: bool) -> Source:
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    names = _input_names(section, list(files)) if with_inputs else []
    roles = named_roles(section)
    wanted = dict.fromkeys([*names, section.label, *roles.values()])
    arrays = {name: _load(_open_mapped, str(files[name])) for name in wanted}
    for name in names:
        check_usable_in_place(name, arrays[name])
    label = as_text(np.array(arrays[section.label]))
    return Source(
        inputs={name: arrays[name] for name in names},
        label=label,
        files={name: files[name] for name in names},
        roles={role: np.array(arrays[name]) for role, name in roles.items()},
    )


def _of_table(frame: "pd.DataFrame", section: DataSection, with_inputs: bool) -> Source:
    inputs, label, roles = read_table(frame, section, with_inputs)
    return Source(inputs, label, roles=roles)


def _open_mapped(file: str) -> np.ndarray:
    array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    return array


def _load(load: Callable[[str], np.ndarray], name: str) -> np.ndarray:
    try:
        return load(name)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"data.source: array {name!r} cannot be read ({error}); save it as numbers or"
            " text, not as objects, with np.save or np.savez"
        ) from error


def _input_names(section: DataSection, existing: Sequence[str]) -> list[str]:
    """Return the arrays that enter the network; the label is none of them."""
    require("data.label", section.label, existing)
    if isinstance(section.inputs, dict):
        raise DataError(
            f"data.inputs: {section.inputs!r} maps names to column patterns, which only a table"
            f" has; list names of arrays, as in [{next(iter(section.inputs), 'image')}]"
        )
    roles = named_roles(section)
    for role, name in roles.items():
        require(f"data.{role}", name, existing)
    others = sorted(set(existing) - {section.label, *roles.values()})
    names = others if section.inputs is None else section.inputs
    for name in names:
        require("data.inputs", name, existing)
        refuse_answer(section, name)
        if names.count(name) > 1:
            raise DataError(f"data.inputs: {name!r} comes up twice; name it once")
    if not names:
        raise DataError(f"data.inputs: {section.inputs!r} names no array; name at least one")
    return list(names)
