"""One row that is left over: as good as any other, or refused before the first step."""

from pathlib import Path

import pytest
import torch
from own_networks import Own, leaves, trainer_of
from small_run import small_config, small_data
from test_resume import numbers
from torch import Tensor, nn
from torch.nn import functional

from outlast.errors import ModelError
from outlast.model.heads import StudyNetwork
from outlast.train.trainer import Trainer

ONE_LEFT = {"batch_size": 7}  # of 29 rows, and of 15 to validate


def trainer_on(
    kind: type[nn.Module], folder: Path, train: int = 29, validation: int = 15
) -> Trainer:
    """A trainer whose batches end in one row."""
    trainer = trainer_of(kind, folder, **ONE_LEFT)
    return Trainer(
        model=trainer.model,
        data=small_data(train=train, validation=validation),
        objective=trainer.objective,
        optimizer=torch.optim.SGD(trainer.model.parameters(), lr=0.05),
        config=small_config(**ONE_LEFT),
        folder=folder,
    )


class Squeezed(Own):
    """As people write it who have never seen a batch of one row."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows).squeeze()


def test_squeeze_takes_no_row_away(tmp_path: Path) -> None:
    """One row without its dimension is one row: the numbers are those of the plain network."""
    plain, squeezed = (trainer_on(kind, tmp_path / kind.__name__) for kind in (Own, Squeezed))
    histories = [leaves(numbers(one.train(2))) for one in (plain, squeezed)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("outputs", [1, 3])
def test_one_row_has_logits_of_one_row(outputs: int) -> None:
    """Of two classes and of more; several rows stay as they are."""

    class Flat(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            return super().forward(rows).squeeze()

    study = StudyNetwork(Flat(4, outputs))
    assert study(torch.ones(1, 4)).logits.shape == (1, outputs)
    assert study(torch.ones(5, 4)).logits.shape == ((5,) if outputs == 1 else (5, 3))


class Functional(Own):
    """Normalizes batches without a layer for it."""

    def extra(self) -> None:
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))

    def hidden(self, rows: Tensor) -> Tensor:
        return functional.batch_norm(
            self.body(rows), self.mean, self.variance, training=self.training
        )


class Within(Own):
    """Squeezes in the middle, where one row then lacks its dimension."""

    def hidden(self, rows: Tensor) -> Tensor:
        return functional.layer_norm(self.body(rows).squeeze(), [8])[:, :8]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Functional, r"batch normalization cannot train on one row .*29 rows in batches of 7"),
        (Within, r"the network cannot train on one row .*squeeze\(1\) for squeeze\(\)"),
    ],
)
def test_a_network_that_fails_on_one_row_is_refused(
    kind: type[nn.Module], message: str, tmp_path: Path
) -> None:
    """Whatever it fails on; before the first step, and with its buffers as they were."""
    trainer = trainer_on(kind, tmp_path)
    before = leaves(dict(trainer.model.state_dict()))
    with pytest.raises(ModelError, match=message):
        trainer.train(1)
    assert trainer.run.position.step == 0
    assert leaves(dict(trainer.model.state_dict())) == before


def test_one_row_to_validate_is_tried_too(tmp_path: Path) -> None:
    """28 rows leave none in training, and 15 leave one in validation; 14 do not."""
    with pytest.raises(ModelError, match="cannot predict one row alone"):
        trainer_on(Within, tmp_path / "one", train=28).train(1)
    trainer_on(Within, tmp_path / "none", train=28, validation=14).train(1)
    trainer_on(Functional, tmp_path / "eval", train=28).train(1)


class Leads(Own):
    """A closure leads from a copy to the network itself, whose buffer would count the trial."""

    def extra(self) -> None:
        self.register_buffer("passes", torch.zeros(()))
        self.count = lambda: self.passes.add_(1)

    def hidden(self, rows: Tensor) -> Tensor:
        if self.training:
            self.count()
        return super().hidden(rows)


def test_the_trial_leaves_no_trace(tmp_path: Path) -> None:
    """Each attempt makes it anew: what it changed would be counted once more."""
    trainer = trainer_on(Leads, tmp_path)
    trainer.train(1)
    assert int(trainer.model.passes) == 5


def test_a_network_that_cannot_be_copied_is_not_tried(tmp_path: Path) -> None:
    """It may be as good as any other."""

    class Uncopied(Own):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("cannot be copied")

    assert len(trainer_on(Uncopied, tmp_path).train(1)["epoch"]) == 1
