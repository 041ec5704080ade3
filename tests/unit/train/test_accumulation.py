from pathlib import Path

import pytest
import torch
from small_run import make_trainer, small_data, weights

from outlast.data.sampling import batch_of, epoch_order

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest weight."""
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch_size", [10, 13])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_split_of_a_batch_takes_the_same_steps(
    tmp_path: Path, batch_size: int, classes: int, dtype: torch.dtype
) -> None:
    """1 to 7 parts give the same weights, the last batch of 3 or 10 rows included (story 38)."""
    data, ends = small_data(train=23, classes=classes), {}
    for split in range(1, 8):
        trainer = make_trainer(
            tmp_path,
            data,
            dtype=dtype,
            batch_size=batch_size,
            grad_accum_split=split,
            optimizer="sgd",
            learning_rate=0.5,
        )
        trainer.train_epoch()
        ends[split] = weights(trainer)
    for split, end in ends.items():
        assert distance(end, ends[1]) < TOLERANCE[dtype], split


@pytest.mark.parametrize("split", [1, 4, 7])
def test_the_gradient_is_that_of_the_mean_loss_over_the_batch(tmp_path: Path, split: int) -> None:
    """Step by step, the gradients in the buffer are those of autograd on the whole batch."""
    data = small_data(train=23, classes=3)
    trainer = make_trainer(
        tmp_path, data, dtype=torch.float64, batch_size=10, grad_accum_split=split, seed=5
    )
    order = epoch_order(data.splits["train"], 5, 0)
    for step in range(3):
        rows = batch_of(order, step, 10)
        logits = trainer.model(torch.from_numpy(data.inputs["x"][rows]))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(data.label[rows]))
        expected = torch.autograd.grad(loss, list(trainer.model.parameters()))
        trainer.run.position.step = step
        trainer._train_step(rows)
        for parameter, gradient in zip(trainer.model.parameters(), expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-11, atol=1e-14)
