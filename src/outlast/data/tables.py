"""Reader of tables: columns by pattern become arrays (N, columns)."""

import csv
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outlast.data.arrays import require
from outlast.data.roles import CATEGORIES, named_roles, refuse_answer
from outlast.errors import DataError
from outlast.sections import DataSection

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def column_names(path: Path) -> list[str] | None:
    """Return the columns of a table from its first line, as :func:`read_frame` will call them.

    None where the file is no text, or has no line.
    """
    # not with pandas, whose import takes longer than everything else that Snakemake parses
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, delimiter=SEPARATORS[path.suffix.lower()])
            header = next((line for line in lines if line), None)
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    return header and [name or f"Unnamed: {place}" for place, name in enumerate(header)]


def read_frame(path: Path, section: DataSection, with_inputs: bool = True) -> "pd.DataFrame":
    """Read the file of a table, or only the columns of label and roles.

    Raises:
        DataError: It is no table, or two of its columns share a name.
    """
    import pandas as pd  # here: ranks of a training import this module, and read no table

    separator = SEPARATORS[path.suffix.lower()]
    try:
        header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str)
        # the names of classes and categories as they are written: 01 and 1 may be two
        roles = named_roles(section)
        text = {section.label, *(name for role, name in roles.items() if role in CATEGORIES)}
        frame = pd.read_csv(
            path,
            sep=separator,
            low_memory=False,
            dtype=dict.fromkeys(text, str),
            usecols=None if with_inputs else lambda name: name in {*text, *roles.values()},
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.source: {str(path)!r} is no table ({error}); the first line holds column names"
        ) from error
    _refuse_repeated([str(name) for name in header.iloc[0].dropna()])
    return frame


def read_table(
    frame: "pd.DataFrame", section: DataSection, with_inputs: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    """Return inputs (float32 arrays by name), label (N,) and roles (N,), from columns.

    Label and roles are numbers or text, "" or NaN where missing.

    Raises:
        DataError: The columns are not what ``section`` says.
    """
    columns = list(frame.columns)
    require("data.label", section.label, columns)
    roles = named_roles(section)
    for role, name in roles.items():
        require(f"data.{role}", name, columns)
    if len(frame) == 0:
        raise DataError(f"data.source: {section.source!r} has a header and no rows")
    groups = _column_groups(frame, section) if with_inputs else {}
    inputs = {name: _as_numbers(frame[names]) for name, names in groups.items()}
    values = {role: _as_values(frame[name], role) for role, name in roles.items()}
    return inputs, _as_label(frame[section.label]), values


def _as_values(column: "pd.Series[Any]", role: str) -> np.ndarray:
    """Return the numbers of a target, the text of a category with "" where it is missing."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if is_numeric_dtype(column):  # of a built-in table
        return column.to_numpy()
    if role == "target":
        _refuse_mixed(column.to_frame(), str(column.name), "data.target")
        numbers = pd.to_numeric(column, errors="coerce")
        if numbers.notna().any() or column.isna().all():
            return numbers.to_numpy()
    return column.fillna("").astype(str).str.strip().to_numpy(dtype=str)


def _as_label(written: "pd.Series[Any]") -> np.ndarray:
    """Return numbers where every label is one and none has leading zeros, else text."""
    import pandas as pd

    if written.dtype.kind in "biuf":
        return written.to_numpy()
    numbers = pd.to_numeric(written, errors="coerce")
    is_text = written.notna() & (numbers.isna() | written.str.fullmatch(r"[-+]?0\d+"))
    return written.fillna("").to_numpy(dtype=str) if is_text.any() else numbers.to_numpy()


def _refuse_repeated(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"data.source: two columns are called {name!r}; rename one of them")


def _column_groups(frame: "pd.DataFrame", section: DataSection) -> dict[str, list[str]]:
    """Return name of the array -> its columns, in the order of the table."""
    if section.inputs is None:
        return {"features": _numeric_columns(frame, section)}
    entries = section.inputs
    groups = entries.items() if isinstance(entries, dict) else [("features", entries)]
    columns = list(frame.columns)
    chosen = {
        name: _chosen([patterns] if isinstance(patterns, str) else patterns, columns, section)
        for name, patterns in groups
    }
    if not all(chosen.values()) or not chosen:
        raise DataError(f"data.inputs: {entries!r} names no column; give at least one pattern")
    return chosen


def _numeric_columns(frame: "pd.DataFrame", section: DataSection) -> list[str]:
    taken = {section.label, *named_roles(section).values()}
    numeric = frame.select_dtypes(["number", "bool"]).columns
    for name in frame.columns.difference(numeric, sort=False):
        if name not in taken:
            _refuse_mixed(frame, str(name))
    columns = [str(name) for name in numeric if name not in taken]
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


def matching(pattern: str, columns: Iterable[str]) -> set[str]:
    """Return the columns that a pattern of `data.inputs` means; a name means itself."""
    return {name for name in columns if name == pattern or fnmatchcase(name, pattern)}


def _chosen(patterns: Iterable[str], columns: Sequence[str], section: DataSection) -> list[str]:
    matched: set[str] = set()
    for pattern in patterns:
        found = matching(pattern, columns)
        if not found:
            require("data.inputs", pattern, columns)
        for name in sorted(found):
            refuse_answer(section, name, pattern)
        matched |= found
    return [name for name in columns if name in matched]


def _as_numbers(frame: "pd.DataFrame") -> np.ndarray:
    import pandas as pd

    # a category of the rows that is an input as well was read as it is written
    texts = frame.select_dtypes(exclude=["number", "bool"])
    numbers = texts.apply(pd.to_numeric, errors="coerce")
    frame = frame.assign(**numbers.loc[:, numbers.notna().sum() == texts.notna().sum()])
    numeric = frame.select_dtypes(["number", "bool"])
    for name in frame.columns.difference(numeric.columns, sort=False):
        _refuse_mixed(frame, str(name))
        value = frame[name].dropna().iloc[0]
        raise DataError(
            f"data.inputs: column {name!r} is not numeric (first value {value!r}); encode it as"
            " numbers, or leave it out"
        )
    for name in frame.columns[frame.isna().any()]:
        missing = frame[name].isna()
        raise DataError(
            f"data.inputs: column {name!r} has {int(missing.sum())} missing value(s), first in row"
            f" {int(missing.argmax())} (from 0); fill them, or remove the rows or the column"
        )
    with np.errstate(over="ignore"):  # what overflows is reported by check_finite
        values: np.ndarray = frame.to_numpy(dtype=np.float32)
    return np.ascontiguousarray(values)


def _refuse_mixed(frame: "pd.DataFrame", name: str, key: str = "data.inputs") -> None:
    """Refuse a column of numbers with some text in it: to drop it in silence loses a feature."""
    import pandas as pd

    numbers = pd.to_numeric(frame[name], errors="coerce")
    text = numbers.isna() & frame[name].notna()
    if 0 < text.sum() < len(frame) / 2:
        raise DataError(
            f"{key}: column {name!r} holds numbers, and {int(text.sum())} value(s) that are"
            f" none, first {frame[name][text].iloc[0]!r} in row {int(text.argmax())} (from 0);"
            " correct them or leave them empty, or name the columns you mean"
        )
