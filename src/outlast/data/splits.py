"""Which rows train, which choose the best epoch, and which only the evaluation sees."""

from collections.abc import Sequence

import numpy as np

from outlast.config import SplitSection
from outlast.errors import DataError

SPLITS = ("train", "validation", "test")


def split_rows(
    label: np.ndarray, section: SplitSection, classes: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Divide the rows at random, by ``section.seed`` alone.

    A split has round(share x N) rows, one at least when its share is above 0.

    Args:
        label: (N,) int64, class of each row.
        section: Shares (of all rows) of validation and test; the rest trains.
        classes: Names of the classes, for messages. Default: their numbers.

    Returns:
        `train`, `validation`, `test` -> (n,) int64 row numbers: sorted, disjoint, together all.

    Raises:
        DataError: Nothing is left to train on, or a class is too rare for a stratified split,
            or a random one leaves none of it to train on.
    """
    names = classes or [str(index) for index in range(int(label.max()) + 1)]
    shares = {"validation": section.validation, "test": section.test}
    sizes = {
        key: max(1, round(share * len(label))) if share else 0 for key, share in shares.items()
    }
    if sum(sizes.values()) >= len(label):
        raise DataError(
            f"data.split: {sizes['validation']} validation and {sizes['test']} test rows of"
            f" {len(label)} leave none to train on; give more rows or smaller shares"
        )
    if section.stratify:
        _check_stratifiable(label, sizes, names)
    rest = np.arange(len(label), dtype=np.int64)
    splits = {}
    for key in ("test", "validation"):
        rest, splits[key] = _take(rest, label, sizes[key], section, names)
    _check_trainable(label, rest, names)
    return {"train": rest, "validation": splits["validation"], "test": splits["test"]}


def _check_stratifiable(label: np.ndarray, sizes: dict[str, int], names: Sequence[str]) -> None:
    counts = np.bincount(label, minlength=len(names))
    needed = 1 + sum(size > 0 for size in sizes.values())
    rarest = int(np.where(counts > 0, counts, len(label)).argmin())
    if counts[rarest] < needed:
        raise _too_rare(names[rarest], int(counts[rarest]), f"{needed} splits")
    present = int((counts > 0).sum())
    for key, size in sizes.items():
        if 0 < size < present:
            raise DataError(
                f"data.split.{key}: {size} rows cannot hold {present} classes; give a larger"
                " share, or set data.split.stratify: false"
            )


def _check_trainable(label: np.ndarray, train: np.ndarray, names: Sequence[str]) -> None:
    counts = np.bincount(label, minlength=len(names))
    untrained = np.flatnonzero(
        (counts > 0) & (np.bincount(label[train], minlength=len(names)) == 0)
    )
    if len(untrained):
        first = int(untrained[0])
        raise DataError(
            f"data.split: none of the {counts[first]} rows of class {names[first]!r} came into the"
            " training split; set data.split.stratify: true, another data.split.seed, or remove"
            " the class"
        )


def _take(
    rows: np.ndarray, label: np.ndarray, size: int, section: SplitSection, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows that stay, ``size`` rows that are taken), both sorted."""
    from sklearn.model_selection import (
        train_test_split,
    )  # slow to import, and only `prepare` splits

    if size == 0:
        return rows, rows[:0]
    strata = label[rows] if section.stratify else None
    try:
        stay, taken = train_test_split(
            rows, test_size=size, stratify=strata, random_state=section.seed
        )
    except ValueError as error:
        # the test split may have taken all but one row of a class that _check_stratifiable passed
        counts = np.bincount(label[rows], minlength=len(names))
        rarest = int(np.where(counts > 0, counts, len(label)).argmin())
        count = int((label == rarest).sum())
        raise _too_rare(names[rarest], count, "splits of these shares") from error
    return np.sort(stay), np.sort(taken)


def _too_rare(name: str, count: int, splits: str) -> DataError:
    return DataError(
        f"data.split.stratify: class {name!r} has {count} rows, too few for {splits}; give it more"
        " rows, or set data.split.stratify: false"
    )
