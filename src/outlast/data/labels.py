"""Label, classes, splits and roles of a data set: what its rows are, without their inputs.

No torch here: Snakemake asks for it before it submits a job.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from outlast.data.roles import Roles, read_roles
from outlast.data.sources import Source
from outlast.data.splits import split_rows
from outlast.errors import DataError
from outlast.sections import DataSection


@dataclass(frozen=True, eq=False)
class Labels:
    """What the rows of a data set are.

    Attributes:
        label: (N,) int64, number of the class.
        classes: Name of each class, by number.
        splits: `train`, `validation`, `test` -> (n,) int64 row numbers, sorted.
        roles: Group, confound and target of each row, as far as the config names them.
    """

    label: np.ndarray
    classes: list[str]
    splits: Mapping[str, np.ndarray]
    roles: Roles


def read_labels(source: Source, section: DataSection) -> Labels:
    """Encode and split what was read; the inputs play no part in it.

    Raises:
        DataError: A role, a threshold or a split that these rows cannot have.
    """
    roles = read_roles(source.roles, len(source.label))
    group = roles.get("group")
    if section.threshold is None:
        label, classes = _encode(source)
        return Labels(label, classes, split_rows(label, section.split, classes, group), roles)
    values = source.label.astype(np.float64)
    if section.threshold == "median":
        # of the training rows: the others must not shape their own label
        splits = split_rows(np.zeros(len(values), dtype=np.int64), section.split, ["row"], group)
        threshold = float(np.median(values[splits["train"]]))
        label = (values > threshold).astype(np.int64)
    else:
        threshold = section.threshold
        label = (values > threshold).astype(np.int64)
        splits = split_rows(label, section.split, _sides_of(threshold), group)
    train = values[splits["train"]]
    if len(np.unique(label[splits["train"]])) < 2:
        raise DataError(
            f"data.threshold: no two classes of training rows are left by {threshold:g}; choose a"
            f" value between {train.min():g} and {train.max():g}"
        )
    return Labels(label, _sides_of(threshold), splits, roles)


def _sides_of(threshold: float) -> list[str]:
    return [f"at most {threshold:g}", f"above {threshold:g}"]


def _encode(source: Source) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's class (N,) int64, and the classes in sorted order."""
    label = source.label.astype(np.int64) if source.label.dtype.kind == "f" else source.label
    values, numbers = np.unique(label, return_inverse=True)
    classes = source.class_names or [str(value) for value in values.tolist()]
    return numbers.astype(np.int64), classes
