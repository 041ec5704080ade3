import numpy as np
import pytest

from outlast.data.splits import check_no_leak, split_rows
from outlast.errors import DataError
from outlast.sections import SplitSection

LABEL = np.repeat([0, 1, 2], [600, 300, 100])[np.random.default_rng(0).permutation(1000)]


def section(**keys: object) -> SplitSection:
    """Make a section of some keys."""
    return SplitSection.model_validate(keys)


@pytest.mark.parametrize("stratify", [True, False])
@pytest.mark.parametrize(
    ("validation", "test", "sizes"),
    [
        (0.15, 0.15, [700, 150, 150]),
        (0.2, 0.1, [700, 200, 100]),
        (0, 0.25, [750, 0, 250]),
        (0.3, 0, [700, 300, 0]),
        (0, 0, [1000, 0, 0]),
        (0.0333, 0.5, [467, 33, 500]),
    ],
)
def test_shares(stratify: bool, validation: float, test: float, sizes: list[int]) -> None:
    """Shares are of all rows; the splits are sorted, disjoint and cover everything."""
    splits = split_rows(LABEL, section(validation=validation, test=test, stratify=stratify))
    assert list(splits) == ["train", "validation", "test"]
    assert [len(rows) for rows in splits.values()] == sizes
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in splits.values())
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(1000))


@pytest.mark.parametrize("seed", range(5))
def test_stratified(seed: int) -> None:
    """Each split has each class in its share, within one row."""
    label = LABEL[:991]
    splits = split_rows(label, section(seed=seed))
    counts = np.bincount(label)
    for rows in splits.values():
        expected = counts * len(rows) / len(label)
        assert (abs(np.bincount(label[rows]) - expected) <= 1).all()


def test_seeded() -> None:
    """The same seed gives the same splits, another seed others."""
    first, again, other = (split_rows(LABEL, section(seed=seed)) for seed in (1, 1, 2))
    for key in first:
        assert np.array_equal(first[key], again[key])
        assert not np.array_equal(first[key], other[key])


def test_not_stratified() -> None:
    """Without strata a class of one row is no obstacle, unless nothing of it trains."""
    label = np.array([0] * 20 + [1])
    splits = split_rows(label, section(stratify=False, seed=1))
    assert len(splits["train"]) == 15
    assert 20 in splits["train"]
    with pytest.raises(DataError, match="none of the 1 rows of class 'rare' came into the train"):
        split_rows(label, section(stratify=False, seed=0), ["common", "rare"])
    split_rows(label, section(stratify=False, seed=1), ["common", "rare", "without a row"])


def test_small_share_is_not_empty() -> None:
    """A share above 0 holds one row at least."""
    splits = split_rows(LABEL[:10], section(validation=0.01, test=0.01, stratify=False))
    assert [len(rows) for rows in splits.values()] == [8, 1, 1]


@pytest.mark.parametrize(
    ("counts", "keys", "message"),
    [
        ([50, 2], {}, r"stratify: class 'rare' has 2 rows.*3 splits.*stratify: false"),
        ([50, 1], {"test": 0}, r"stratify: class 'rare' has 1 rows.*2 splits"),
        ([8, 3], {"test": 0.7, "validation": 0.18}, r"class 'rare' has 3 rows.*stratify: false"),
        ([50, 50], {"test": 0.01}, r"data\.split\.test: 1 rows cannot hold 2 classes.*false"),
        ([1, 1], {"stratify": False}, r"data\.split: 1 validation and 1 test rows of 2 leave"),
    ],
)
def test_refused(counts: list[int], keys: dict[str, object], message: str) -> None:
    """Splits that cannot be made name class, count and the key to change."""
    with pytest.raises(DataError, match=message):
        split_rows(np.repeat([0, 1], counts), section(**keys), ["common", "rare"])


def test_numbers_stand_for_names() -> None:
    """Without names a message calls the class by its number."""
    with pytest.raises(DataError, match="class '1' has 2 rows"):
        split_rows(np.repeat([0, 1], [50, 2]), section())


GROUP = np.repeat(np.arange(60), np.random.default_rng(1).integers(5, 30, 60))[:1000]


@pytest.mark.parametrize("stratify", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_never_cut(stratify: bool, seed: int) -> None:
    """Story 49: each group is in one split; sizes and class shares are about those asked for."""
    splits = split_rows(LABEL, section(seed=seed, stratify=stratify), group=GROUP)
    assert np.array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(1000))
    owners = [set(GROUP[rows]) for rows in splits.values()]
    assert sum(map(len, owners)) == len(set(GROUP)) == len(set.union(*owners))
    for key in ("validation", "test"):
        assert abs(len(splits[key]) - 150) <= 20, key
        if stratify:
            share = np.bincount(LABEL[splits[key]], minlength=3) / len(splits[key])
            assert np.abs(share - [0.6, 0.3, 0.1]).max() < 0.06
    again = split_rows(LABEL, section(seed=seed, stratify=stratify), group=GROUP)
    assert all(np.array_equal(again[key], splits[key]) for key in splits)


def test_few_or_large_groups() -> None:
    """Three groups make three splits, whatever their sizes; two do not."""
    label = np.arange(100) % 2
    splits = split_rows(label, section(), group=np.repeat([0, 1, 2], [90, 5, 5]))
    assert sorted(len(rows) for rows in splits.values()) == [5, 5, 90]
    splits = split_rows(label, section(), group=np.repeat([0, 1, 2], [34, 33, 33]))
    assert all(len(rows) > 30 for rows in splits.values())
    with pytest.raises(DataError, match=r"data\.group: 2 group\(s\) .* 3 splits"):
        split_rows(label, section(), group=np.repeat([0, 1], 50))


def test_a_leak_is_found() -> None:
    """A row, or a group, in two splits is refused at each start."""
    splits = {"train": np.array([0, 1, 2]), "test": np.array([3, 4])}
    check_no_leak(splits, None)
    check_no_leak(splits, np.array([0, 0, 0, 1, 1]))
    with pytest.raises(DataError, match="group number 0 is in train and in test"):
        check_no_leak(splits, np.array([0, 0, 0, 1, 0]))
    with pytest.raises(DataError, match="row 2 is in train and in test"):
        check_no_leak({**splits, "test": np.array([2, 4])}, None)
