"""Reader of tables: columns by pattern become arrays (N, columns)."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outlast.config import DataSection
from outlast.data.arrays import require
from outlast.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def read_table(path: Path, section: DataSection) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Read the inputs (float32 arrays by name) and the label (N,), numbers or text, "" if missing.

    Raises:
        DataError: No table, or its columns are not what ``section`` says.
    """
    import pandas as pd  # here: ranks of a training import this module, and read no table

    try:
        frame = pd.read_csv(path, sep=SEPARATORS[path.suffix.lower()], low_memory=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.source: {str(path)!r} is no table ({error}); the first line holds column names"
        ) from error
    require("data.label", section.label, list(frame.columns))
    label = frame[section.label]
    is_number = pd.api.types.is_numeric_dtype(label)
    groups = _column_groups(frame, section)
    inputs = {name: _as_numbers(frame[columns]) for name, columns in groups.items()}
    return inputs, label.to_numpy() if is_number else label.fillna("").to_numpy(dtype=str)


def _column_groups(frame: "pd.DataFrame", section: DataSection) -> dict[str, list[str]]:
    """Return name of the array -> its columns, in the order of the table."""
    if section.inputs is None:
        return {"features": _numeric_columns(frame, section.label)}
    entries = section.inputs
    groups = entries.items() if isinstance(entries, dict) else [("features", entries)]
    columns = list(frame.columns)
    chosen = {
        name: _matching([patterns] if isinstance(patterns, str) else patterns, columns, section)
        for name, patterns in groups
    }
    if not all(chosen.values()) or not chosen:
        raise DataError(f"data.inputs: {entries!r} names no column; give at least one pattern")
    return chosen


def _numeric_columns(frame: "pd.DataFrame", label: str) -> list[str]:
    numeric = frame.select_dtypes(["number", "bool"]).columns
    columns = [str(name) for name in numeric if name != label]
    if not columns:
        raise DataError("data.inputs: null, and the table has no numeric column; name columns")
    for name in columns:
        # the row numbers that to_csv adds: on rows sorted by class they give the class away
        if name.startswith("Unnamed: "):
            raise DataError(
                f"data.inputs: null takes every numeric column, and one has no name ({name!r}),"
                " such as saved row numbers; name it in the file or list the columns you mean"
            )
    return columns


def _matching(patterns: Iterable[str], columns: Sequence[str], section: DataSection) -> list[str]:
    matched: set[str] = set()
    for pattern in patterns:
        found = {name for name in columns if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            require("data.inputs", pattern, columns)
        if section.label in found:
            raise DataError(
                f"data.inputs: {pattern!r} matches the label column {section.label!r}: the network"
                " would be told the answer; use a narrower pattern"
            )
        matched |= found
    return [name for name in columns if name in matched]


def _as_numbers(frame: "pd.DataFrame") -> np.ndarray:
    numeric = frame.select_dtypes(["number", "bool"])
    for name in frame.columns.difference(numeric.columns, sort=False):
        value = frame[name].dropna().iloc[:1].tolist()
        raise DataError(
            f"data.inputs: column {name!r} is not numeric (first value {value}); encode it as"
            " numbers, or leave it out"
        )
    with np.errstate(over="ignore"):  # what overflows is reported by check_finite
        values: np.ndarray = frame.to_numpy(dtype=np.float32)
    return np.ascontiguousarray(values)
