"""Buffers that training changes in other ways than by a number: restored, or refused early."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import Own, keeps_the_law, trainer_of
from torch import Tensor, nn

from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.train.selection import StoppingRule


class Mean(Own):
    """A running mean; where it is kept, and how, is varied."""

    persistent = True

    def keep(self, name: str, value: Tensor) -> None:
        """As a buffer."""
        self.register_buffer(name, value, persistent=self.persistent)

    def extra(self) -> None:
        self.keep("mean", torch.zeros(8))

    def update(self, hidden: Tensor) -> None:
        """In place."""
        self.mean.lerp_(hidden.mean(0), 0.1)

    def read(self) -> Tensor:
        """What is added to the representation."""
        return self.mean

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.hidden(rows)
        if self.training:
            self.update(hidden.detach())
        return self.head(hidden + self.read().float() * 1.001)


class BecomesFloat(Mean):
    """An integer at first."""

    def extra(self) -> None:
        self.keep("mean", torch.tensor(0))

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean()


class BecomesDouble(Mean):
    """float32 at first."""

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean.double() + 0.1 * hidden.double().mean(0)


class InTwoModules(Mean):
    """One tensor, known to both; another, of another shape than at first; in a list as well."""

    def extra(self) -> None:
        super().extra()
        self.sub = nn.Identity()
        self.sub.register_buffer("mean", self.mean, persistent=self.persistent)
        self.keep("grown", torch.zeros(0))
        self.keep("too", self.grown)
        self.holders = [self.mean]

    def update(self, hidden: Tensor) -> None:
        super().update(hidden)
        if len(self.grown) == 0:
            self.grown = self.too = torch.zeros(8)
        self.grown.lerp_(hidden.mean(0), 0.1)

    def read(self) -> Tensor:
        return self.sub.mean + self.holders[0] + (self.too if len(self.too) else 0)


class ComesApart(Mean):
    """One tensor under two names, until one name gets another."""

    def extra(self) -> None:
        super().extra()
        self.keep("first", self.mean)

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(0)

    def read(self) -> Tensor:
        return self.mean - self.first


class PartlyTransient(Mean):
    """One tensor as a buffer of either kind, until one of them gets another."""

    def extra(self) -> None:
        super().extra()
        self.register_buffer("first", self.mean, persistent=not self.persistent)

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(0)

    def read(self) -> Tensor:
        return self.mean - self.first


class Joins(Mean):
    """Two tensors, of which training makes one; equal at first."""

    def extra(self) -> None:
        super().extra()
        self.keep("other", torch.zeros(8))

    def update(self, hidden: Tensor) -> None:
        self.other = self.mean
        super().update(hidden)

    def read(self) -> Tensor:
        return self.mean + self.other


class Expanded(Mean):
    """Not in place: all its rows are one."""

    def extra(self) -> None:
        self.keep("mean", torch.zeros(1, 8).expand(3, 8))

    def update(self, hidden: Tensor) -> None:
        self.mean = self.mean + 0.01 * hidden.mean(0)

    def read(self) -> Tensor:
        return self.mean.sum(0)


MEANS = [
    Mean,
    BecomesFloat,
    BecomesDouble,
    InTwoModules,
    ComesApart,
    PartlyTransient,
    Joins,
    Expanded,
]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", MEANS)
def test_a_buffer_is_as_it_has_become(kind: type[Mean], persistent: bool, tmp_path: Path) -> None:
    """Its dtype, and who else holds it."""
    keeps_the_law(type(kind.__name__, (kind,), {"persistent": persistent}), tmp_path)


class Sends(Distributed):
    """The first of two ranks; gets what the second would."""

    def broadcast(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))


def test_what_two_modules_share_is_shared_on_every_rank(tmp_path: Path) -> None:
    """At a fresh start, whose initial values are those of rank 0."""
    trainer = trainer_of(InTwoModules, tmp_path)
    trainer._keeper._distributed = Sends(world_size=2)
    trainer._keeper.resume(StoppingRule(1, 0, True))
    network = trainer.model
    assert network.mean is network.sub.mean
    assert network.mean is network.holders[0]


class DropsBuffer(Mean):
    """After its first step, as data dependent initializations do."""

    def update(self, hidden: Tensor) -> None:
        self.mean = None

    def read(self) -> Tensor:
        return torch.zeros(8) if self.mean is None else self.mean


class DropsTransientBuffer(DropsBuffer):
    """One that no state dict has."""

    persistent = False


class DeletesBuffer(DropsBuffer):
    """For good."""

    def update(self, hidden: Tensor) -> None:
        if hasattr(self, "mean"):
            del self.mean

    def read(self) -> Tensor:
        return getattr(self, "mean", torch.zeros(8))


class BuildsLate(Mean):
    """A layer, when it knows how wide it must be."""

    def extra(self) -> None:
        self.late: Any = None

    def update(self, hidden: Tensor) -> None:
        self.late = self.late or nn.Linear(8, 8)

    def read(self) -> Tensor:
        return torch.zeros(8) if self.late is None else self.late(torch.ones(8))


class BuildsLateBuffer(BuildsLate):
    """A layer that learns nothing, and counts."""

    def update(self, hidden: Tensor) -> None:
        self.late = self.late or nn.BatchNorm1d(8, affine=False)

    def read(self) -> Tensor:
        return torch.zeros(8)


class Reshapes(Mean):
    """A weight."""

    def update(self, hidden: Tensor) -> None:
        self.unused = nn.Parameter(torch.zeros(len(self.unused) + 1))

    def extra(self) -> None:
        super().extra()
        self.unused = nn.Parameter(torch.zeros(1))


class BuildsPlainLayer(BuildsLate):
    """Which holds nothing."""

    def update(self, hidden: Tensor) -> None:
        self.late = self.late or nn.ReLU()

    def read(self) -> Tensor:
        return torch.zeros(8)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DropsBuffer, "mean is gone or None"),
        (DropsTransientBuffer, "mean is gone or None"),
        (DeletesBuffer, "mean is gone or None"),
        (BuildsLate, "late.bias is new, late.weight is new"),
        (BuildsLateBuffer, "late.running_mean is new, with its module"),
        (Reshapes, "unused has another shape"),
    ],
)
def test_what_no_state_brings_back_is_refused_at_the_first_save(
    kind: type[Own], words: str, tmp_path: Path
) -> None:
    """And not by the first attempt after a kill, or never."""
    with pytest.raises(ModelError, match=f"training has changed it: .*{words}.*constructor"):
        trainer_of(kind, tmp_path).train(1)
    assert not (tmp_path / "model_resume.pt").exists()


def test_a_new_layer_that_holds_nothing_is_allowed(tmp_path: Path) -> None:
    """It is built again."""
    keeps_the_law(BuildsPlainLayer, tmp_path)
