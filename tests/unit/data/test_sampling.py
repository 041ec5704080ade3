import itertools

import numpy as np
import pytest

from outlast.data.sampling import balanced_order, batch_of, cut, epoch_order, num_steps, step_seed

ROWS = np.arange(100, 120)


def test_an_order_is_a_permutation() -> None:
    """Each row occurs once in an epoch, whatever the seed."""
    for seed, epoch in itertools.product(range(4), range(4)):
        assert sorted(epoch_order(ROWS, seed, epoch)) == list(ROWS)


def test_the_order_differs_by_epoch_and_by_seed() -> None:
    """No two of 36 (seed, epoch) give the same order (story 36)."""
    orders = {tuple(epoch_order(ROWS, s, e)) for s in range(6) for e in range(6)}
    assert len(orders) == 36


def test_the_order_survives_an_upgrade_of_numpy() -> None:
    """Seed 7, epoch 3 deals ten rows like this for ever: a resumed epoch is not dealt anew."""
    assert epoch_order(np.arange(10), seed=7, epoch=3).tolist() == [5, 4, 9, 2, 7, 1, 0, 8, 3, 6]


def test_an_order_neither_reads_nor_moves_the_global_generator() -> None:
    """The order is a pure function: it leaves numpy's global state and its input alone."""
    rows = ROWS.copy()
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    first = epoch_order(rows, 0, 0)
    assert np.random.random() == expected
    assert np.array_equal(first, epoch_order(rows, 0, 0))
    assert np.array_equal(rows, ROWS)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (10, 3), (12, 4), (5, 8), (23, 7)])
def test_batches_cover_an_epoch(rows: int, size: int) -> None:
    """Batches in sequence are the epoch; only the last one may be smaller (story 39)."""
    order = epoch_order(np.arange(rows), 0, 0)
    batches = [batch_of(order, step, size) for step in range(num_steps(rows, size))]
    assert np.concatenate(batches).tolist() == order.tolist()
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert 1 <= len(batches[-1]) <= size


@pytest.mark.parametrize("pieces", range(1, 8))
def test_pieces_cover_everything_once(pieces: int) -> None:
    """1 to 7 pieces of 0 to 20 rows: each row in one piece, sizes differ by one at most."""
    for size in range(21):
        rows = np.arange(size)
        parts = [cut(rows, pieces, index) for index in range(pieces)]
        assert np.concatenate(parts).tolist() == rows.tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_step_seeds_differ_in_every_argument() -> None:
    """Seed, epoch, step and rank each change the seed of a step; none collides among 4096."""
    seeds = {step_seed(*key) for key in itertools.product(range(8), repeat=4)}
    assert len(seeds) == 8**4
    assert all(0 <= seed < 2**63 for seed in seeds), "torch takes a signed 64-bit seed"


def test_a_step_seed_stays_what_it_was() -> None:
    """The seed of a step is the same in each process and release."""
    assert step_seed(0, 1, 2, 3) == 4019600915400777878


@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_order_draws_each_category_equally_often(seed: int) -> None:
    """As many draws as rows, from the given rows alone, within chance of equal shares."""
    rows = np.arange(5, 4005)
    category = np.where(np.arange(5000) % 20 == 0, 2, np.arange(5000) % 2)
    order = balanced_order(rows, category, seed, 3)
    assert len(order) == 4000
    assert order.min() >= 5
    assert order.max() < 4005
    shares = np.bincount(category[order], minlength=3) / 4000
    assert np.abs(shares - 1 / 3).max() < 0.03
    # each row of the rare category about 6.7 times, of the others 0.7 times
    assert np.bincount(order, minlength=4005)[np.flatnonzero(category[:4005] == 2)][1:].mean() > 5


def test_a_balanced_order_is_a_function_of_seed_and_epoch() -> None:
    """Equal ones are equal, others differ; equal categories leave every row its chance."""
    rows, category = np.arange(300), np.arange(300) % 3
    first = balanced_order(rows, category, 1, 2)
    assert np.array_equal(balanced_order(rows, category, 1, 2), first)
    assert not np.array_equal(balanced_order(rows, category, 1, 3), first)
    assert not np.array_equal(balanced_order(rows, category, 2, 2), first)
    draws = np.concatenate([balanced_order(rows, category, 0, epoch) for epoch in range(50)])
    assert np.bincount(draws, minlength=300).min() > 20
