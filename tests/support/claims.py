"""Claims on a run folder, for the tests of who may write there."""

from pathlib import Path

from outlast.train.claim import Claim


def third_owner(folder: Path) -> Claim:
    """Return a living claim of number 3, after two that were given free."""
    for _ in range(2):
        owner = Claim(folder)
        owner.try_acquire()
        owner.release()
    owner = Claim(folder)
    assert owner.try_acquire() is None
    return owner
