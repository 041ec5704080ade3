from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from small_run import Net, make_trainer

from outlast.distributed import Distributed
from outlast.model.seeding import seed_everything

T = TypeVar("T")


class OneOfTwo(Distributed):
    """One of two ranks, whose partner adds nothing."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather(self, value: T) -> list[T]:
        return [value, value]


def masks(folder: Path, epochs: int = 2, rank: int | None = None, seed: int = 0) -> list[list[int]]:
    """The dropout masks of all steps: what was kept in their first two rows."""
    ranks = Distributed() if rank is None else OneOfTwo(rank, 2)
    trainer = make_trainer(folder, dropout=0.5, distributed=ranks, batch_size=10, seed=seed)
    for _ in range(epochs):
        trainer.train_epoch()
    assert isinstance(trainer.model, Net)
    return [(mask[:2] > 0).int().flatten().tolist() for mask in trainer.model.masks]


def test_dropout_differs_between_steps_and_epochs(tmp_path: Path) -> None:
    """Six steps in two epochs drop six different patterns (story 47)."""
    found = masks(tmp_path)
    assert len(found) == 6
    assert len({tuple(mask) for mask in found}) == 6


def test_dropout_is_the_same_in_a_rerun(tmp_path: Path) -> None:
    """A second run of the same seed drops the same, another seed does not."""
    first = masks(tmp_path / "one")
    torch.manual_seed(99)
    assert masks(tmp_path / "two") == first
    assert all(a != b for a, b in zip(masks(tmp_path / "three", seed=1), first, strict=True))


def test_dropout_differs_between_ranks(tmp_path: Path) -> None:
    """In one step no two ranks drop the same (story 8)."""
    zero, one = (masks(tmp_path / str(rank), rank=rank) for rank in (0, 1))
    assert all(a != b for a, b in zip(zero, one, strict=True))


def test_one_seed_reaches_every_generator() -> None:
    """Python, numpy and torch all start from the seed of a step."""
    import random

    draws = []
    for seed in (5, 6, 5):
        seed_everything(seed, torch.device("cpu"))
        draws.append((random.random(), np.random.random(), float(torch.rand(1))))
    assert draws[0] == draws[2]
    assert all(a != b for a, b in zip(draws[0], draws[1], strict=True))


def test_numpy_can_be_seeded_with_63_bits() -> None:
    """The largest seed of a step is not too large for any of them."""
    seed_everything(2**63 - 1, torch.device("cpu"))


def test_validation_draws_the_same_whatever_was_drawn_before(tmp_path: Path) -> None:
    """A network that drops values in evaluation too is scored alike before and after a resume."""
    trainer = make_trainer(tmp_path)
    trainer.model.head.register_forward_pre_hook(
        lambda _, inputs: torch.nn.functional.dropout(inputs[0], 0.5, training=True)
    )
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(trainer.validate())
    assert found[0] == found[1]
