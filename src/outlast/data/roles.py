"""What rows bring beside inputs and label: groups, a confound, a continuous target."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outlast.errors import DataError
from outlast.sections import DataSection

UNKNOWN = -1
# keys of `data:` that name an array or a column, beside `inputs` and `label`
CATEGORIES = ("group", "noise_group", "confound")
ROLES = (*CATEGORIES, "target")


@dataclass(frozen=True, eq=False)
class Roles:
    """The roles that a config names; an absent one has no entry.

    Attributes:
        values: `group`, `noise_group`: (N,) int64, number of the category. `confound`: the same,
            -1 where unknown. `target`: (N,) float64, NaN where missing.
        names: Category names by number, of every role but `target`.
    """

    values: dict[str, np.ndarray] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def get(self, role: str) -> np.ndarray | None:
        """Return the values of a role, or None."""
        return self.values.get(role)


def named_roles(section: DataSection) -> dict[str, str]:
    """Return role -> array or column, for the roles that the config names."""
    names = {role: getattr(section, role) for role in ROLES}
    for role in CATEGORIES:
        if names[role] == section.label and section.threshold is None:
            raise DataError(
                f"data.{role}: {section.label!r} is the label, and cannot be the {role} as well;"
                " name another column, or remove the key"
            )
    names["noise_group"] = names["noise_group"] or names["group"]
    return {role: name for role, name in names.items() if name is not None}


def refuse_answer(section: DataSection, name: str, pattern: str | None = None) -> None:
    """Refuse an input that tells the network what it shall find out."""
    for role in ("label", "target", "group"):
        if name == getattr(section, role):
            matched = f"{pattern!r} matches {name!r}, the" if pattern else f"{name!r} is the"
            raise DataError(
                f"data.inputs: {matched} {role}: the network would be told the answer; remove it"
                " from the inputs, or use a narrower pattern"
            )


def valid_targets(target: Any, unit: bool) -> Any:
    """Tell which targets count, (N,) bool, as an array or a tensor: whatever ``target`` is.

    Args:
        target: (N,), NaN where missing.
        unit: Targets lie in [0, 1], and a negative one is missing too.
    """
    return target >= 0 if unit else target == target  # NaN equals nothing


def read_roles(raw: Mapping[str, np.ndarray], rows: int) -> Roles:
    """Check and encode roles as they were read.

    Args:
        raw: Role -> values as given, numbers or text.
        rows: Of the data set.

    Raises:
        DataError: A shape, a value or a missing value that the role cannot have.
    """
    values, names = {}, {}
    for role, array in raw.items():
        if array.shape != (rows,):
            raise DataError(
                f"data.{role}: it has shape {array.shape}, and the label has {rows} rows; one value"
                " per row is needed"
            )
        if role == "target":
            values[role] = _as_target(array)
        else:
            values[role], names[role] = _as_categories(role, array)
    return Roles(values, names)


def _as_target(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"data.target: its values are {array.dtype}, first {array[:1].tolist()}; numbers are"
            " needed (an empty field is a missing one)"
        )
    # float64: a float32 of a date would leave minutes
    target: np.ndarray = array.astype(np.float64)
    if not np.isfinite(target).any():
        raise DataError("data.target: every value is missing; name another column or leave it out")
    if np.isinf(target).any():
        row = int(np.isinf(target).argmax())
        raise DataError(
            f"data.target: infinite in row {row} (from 0); leave it empty or correct it"
        )
    return target


def _as_categories(role: str, array: np.ndarray) -> tuple[np.ndarray, list[str]]:
    text, missing = _as_text(array, role)
    if role != "confound" and missing.any():
        raise DataError(
            f"data.{role}: missing in {int(missing.sum())} rows, first row {int(missing.argmax())}"
            " (from 0); each row needs one"
        )
    names, numbers = np.unique(text[~missing], return_inverse=True)
    if role == "confound" and 2 * len(names) > max(4, int((~missing).sum())):
        raise DataError(
            f"data.confound: {len(names)} values in {int((~missing).sum())} rows are no categories;"
            " bin them, or name another column"
        )
    if role == "confound" and len(names) < 2:
        raise DataError(
            f"data.confound: {len(names)} value(s) are known, and an adversary needs two to tell"
            " apart; name another column or leave it out"
        )
    encoded = np.full(len(array), UNKNOWN, dtype=np.int64)
    encoded[~missing] = numbers
    return encoded, [str(name) for name in names]


def _as_text(array: np.ndarray, role: str) -> tuple[np.ndarray, np.ndarray]:
    """Return values as text, and which are missing: empty or NaN, and -1 for a confound."""
    kind, unknown = array.dtype.kind, np.zeros(len(array), dtype=bool)
    if kind in "biuf" and role == "confound":
        unknown = np.asarray(array == UNKNOWN)
    if kind in "biu":
        return array.astype(str), unknown
    if kind == "f":
        missing = np.isnan(array) | unknown
        whole = bool((array[~missing] == np.floor(array[~missing])).all())
        filled = np.where(missing, 0, array)
        return (filled.astype(np.int64) if whole else filled).astype(str), missing
    text = np.char.decode(array, "utf-8") if kind == "S" else array.astype(str)
    unknown_names = [str(UNKNOWN), f"{UNKNOWN}.0"] if role == "confound" else []
    return text, np.isin(text, ["", "nan", *unknown_names])
