"""The global order of an epoch, and who trains what of a batch. Pure functions, no state.

The order depends on (seed, epoch) alone: not on ranks, attempts or the accumulation split.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def epoch_order(rows: Rows, seed: int, epoch: int) -> Rows:
    """Return ``rows`` in the order of ``epoch``."""
    return _dice(seed, epoch).permutation(rows)


def balanced_order(rows: Rows, category: NDArray[np.int64], seed: int, epoch: int) -> Rows:
    """Return as many draws from ``rows``, with replacement, equally often from each category.

    Args:
        rows: To draw from.
        category: (N,), of every row of the data set.
        seed: Of the run.
        epoch: From 0.

    Returns:
        The order of the epoch, which every rank draws alike and shares out (story 37).
    """
    _, number, count = np.unique(category[rows], return_inverse=True, return_counts=True)
    share = 1.0 / (len(count) * count[number])
    # choice(p=...) without its own rounding of the shares, which would refuse large data
    edges = np.cumsum(share)
    drawn = np.searchsorted(
        edges, _dice(seed, epoch).random_sample(len(rows)) * edges[-1], side="right"
    )
    order: Rows = rows[np.minimum(drawn, len(rows) - 1)]
    return order


def _dice(seed: int, epoch: int) -> np.random.RandomState:
    """Return the source of randomness of one epoch.

    RandomState and not Generator: numpy promises that this stream never changes (NEP 19). A
    resumed epoch must not be dealt anew because numpy was upgraded in between.
    """
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, epoch))))


def num_steps(num_rows: int, batch_size: int) -> int:
    """Return the batches of an epoch; the last one may be smaller."""
    return -(-num_rows // batch_size)


def batch_of(order: Rows, step: int, batch_size: int) -> Rows:
    """Return the rows of one global batch."""
    return order[step * batch_size : (step + 1) * batch_size]


def cut(rows: NDArray[Any], pieces: int, index: int) -> NDArray[Any]:
    """Return piece ``index`` of ``pieces``: contiguous, sizes differ by one at most, maybe empty.

    Serves for the shares of ranks and for the parts of gradient accumulation.
    """
    start, stop = (len(rows) * i // pieces for i in (index, index + 1))
    return rows[start:stop]


def step_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """Return the seed of all randomness within one step on one rank (dropout, augmentation)."""
    key = f"{seed},{epoch},{step},{rank}".encode()
    # 63 bits: torch takes a signed 64-bit seed
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
