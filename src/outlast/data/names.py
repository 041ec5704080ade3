"""Names of the `data:` section that its source lacks, found without reading a row. No torch here.

Snakemake asks this before it submits a job: a misspelt column must not cost a night in a queue.
"""

import difflib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from outlast.data.arrays import require
from outlast.data.roles import named_roles
from outlast.data.sources import BUILT_INS
from outlast.data.tables import SEPARATORS, column_names, matching
from outlast.errors import DataError
from outlast.sections import DataSection


def missing_names(section: DataSection) -> list[str]:
    """Return a line for each array or column that the config names and the source does not have.

    Empty too where the source is not there yet, or is broken: reading it says what is wrong. But
    what is not there and is written almost like a built-in is a misspelt one.
    """
    near = difflib.get_close_matches(section.source, BUILT_INS, n=1)
    if near and section.source not in BUILT_INS and not Path(section.source).expanduser().exists():
        return [f"data.source: {section.source!r} does not exist; did you mean {near[0]}?"]
    existing = _existing_names(section.source)
    if existing is None:
        return []
    problems = []
    try:
        wanted = list(_wanted(section, existing))
    except DataError as error:  # a role that is the label
        return [str(error)]
    for key, name in wanted:
        try:
            require(key, name, existing)
        except DataError as error:
            problems.append(str(error))
    return problems


def _existing_names(source: str) -> Sequence[str] | None:
    path = Path(source).expanduser()
    if source == "diabetes":
        return None  # its columns are known to scikit-learn, which takes seconds to import
    if source in BUILT_INS:
        return [BUILT_INS[source], "label"]
    if path.is_dir():
        return sorted(file.stem for file in path.glob("*.npy"))
    if path.suffix.lower() in SEPARATORS:
        return column_names(path)
    if not zipfile.is_zipfile(path):
        return None
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


def _wanted(section: DataSection, existing: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "data.label", section.label
    for role, name in named_roles(section).items():
        if role != "noise_group" or section.noise_group:  # it defaults to the group
            yield f"data.{role}", name
    entries = section.inputs or []
    if isinstance(entries, dict) and Path(section.source).suffix.lower() not in SEPARATORS:
        return  # patterns of columns for what has none: the reader says so
    for entry in entries.values() if isinstance(entries, dict) else entries:
        for pattern in [entry] if isinstance(entry, str) else entry:
            if not matching(pattern, existing):
                yield "data.inputs", pattern
