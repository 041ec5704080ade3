"""Which rows train, which choose the best epoch, and which only the evaluation sees."""

from collections.abc import Mapping, Sequence

import numpy as np

from outlast.errors import DataError, listed
from outlast.sections import SplitSection

SPLITS = ("train", "validation", "test")
# relative distance of a split's size from its share, above which a note is due
UNEXPECTED = 0.25


def split_rows(
    label: np.ndarray,
    section: SplitSection,
    classes: Sequence[str] | None = None,
    group: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Divide the rows at random, by ``section.seed`` alone.

    A split has round(share x N) rows, one at least when its share is above 0; with groups about
    as many, since none is cut.

    Args:
        label: (N,) int64, class of each row.
        section: Shares (of all rows) of validation and test; the rest trains.
        classes: Names of the classes, for messages. Default: their numbers.
        group: (N,) int64: rows of one group stay together.

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
    if group is not None:
        _check_groups(group, sizes)
    elif section.stratify:
        _check_stratifiable(label, sizes, names)
    rest = np.arange(len(label), dtype=np.int64)
    splits = {}
    for key in ("test", "validation"):
        if group is None:
            rest, splits[key] = _take(rest, label, sizes[key], section, names)
        else:
            reserve = 1 + (key == "test" and sizes["validation"] > 0)  # groups for the others
            rest, splits[key] = _take_groups(rest, label, group, sizes[key], section, reserve)
    _check_trainable(label, rest, names)
    return {"train": rest, "validation": splits["validation"], "test": splits["test"]}


def notable_splits(
    label: np.ndarray,
    splits: Mapping[str, np.ndarray],
    section: SplitSection,
    classes: Sequence[str],
) -> list[str]:
    """Return a line for each split that cannot be what one expects: groups are never cut.

    Args:
        label: (N,) int64, class of each row.
        splits: From ``split_rows``.
        section: What was asked for.
        classes: Name of each class.
    """
    lines = []
    for key, share in (("validation", section.validation), ("test", section.test)):
        rows = splits[key]
        if share == 0:
            continue
        wanted = share * len(label)
        if abs(len(rows) - wanted) > max(1, UNEXPECTED * wanted):
            lines.append(
                f"data.split.{key}: {share:g} of the rows was asked for, and with whole groups it"
                f" has {len(rows) / len(label):.2g}; try another data.split.seed, or a finer"
                " data.group"
            )
        counts = np.bincount(label[rows], minlength=len(classes))
        if lacking := [name for name, count in zip(classes, counts, strict=True) if count == 0]:
            lines.append(
                f"data.split.{key}: it has no row of class {listed(lacking)}, and its metrics say"
                " nothing of that; try another data.split.seed"
            )
    return lines


def check_no_leak(splits: Mapping[str, np.ndarray], group: np.ndarray | None) -> None:
    """Refuse splits that share a row or a group: what was trained on would be scored.

    Raises:
        DataError: With the group or row that stands in two splits.
    """
    seen: dict[str, np.ndarray] = {}
    for key, rows in splits.items():
        for other, before in seen.items():
            shared = np.intersect1d(rows if group is None else group[rows], before)
            if len(shared):
                what = "row" if group is None else "group number"
                raise DataError(
                    f"data.split: {what} {shared[0]} is in {other} and in {key}; run prepare again"
                )
        seen[key] = np.unique(rows if group is None else group[rows])


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


def _check_groups(group: np.ndarray, sizes: dict[str, int]) -> None:
    needed, found = 1 + sum(size > 0 for size in sizes.values()), len(np.unique(group))
    if found < needed:
        raise DataError(
            f"data.group: {found} group(s) cannot be shared among {needed} splits without cutting"
            " one; name a finer column, or set data.split.validation or data.split.test to 0"
        )


def _take_groups(
    rows: np.ndarray,
    label: np.ndarray,
    group: np.ndarray,
    size: int,
    section: SplitSection,
    reserve: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows that stay, about ``size`` rows of whole groups), both sorted.

    Whole groups in random order, each taken when it brings the split nearer to its size; with
    ``stratify`` to its size in every class.
    """
    if size == 0:
        return rows, rows[:0]
    groups, number = np.unique(group[rows], return_inverse=True)
    strata = label[rows] if section.stratify else np.zeros(len(rows), dtype=np.int64)
    counts = np.zeros((len(groups), int(strata.max()) + 1))
    np.add.at(counts, (number, strata), 1)
    missing = counts.sum(0) * (size / len(rows))
    order = np.random.RandomState(section.seed).permutation(len(groups))
    taken: list[int] = []
    for index in order:
        after = missing - counts[index]
        if len(taken) < len(groups) - reserve and np.abs(after).sum() < np.abs(missing).sum():
            taken.append(int(index))
            missing = after
    if not taken:  # every group is larger than the split: the smallest
        taken = [int(counts.sum(1).argmin())]
    chosen = np.isin(number, taken)
    return rows[~chosen], rows[chosen]


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
