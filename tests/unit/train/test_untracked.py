"""State of a network outside its state dict: saved where torch knows it, named where not."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_run import make_trainer, weights
from test_resume import numbers, stop_after
from torch import Tensor, nn

from outlast.errors import InterruptedRunError
from outlast.train.trainer import Trainer
from outlast.train.untracked import Untracked


class Annealed(nn.Linear):
    """Its logits depend on a buffer that the state dict leaves out."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.seen = torch.cat([self.seen, self.seen[-1:] + 0.1])[-5:]
        return super().forward(rows) * (1 + self.seen.sum())


def annealed(folder: Path) -> Trainer:
    """A trainer for it, whose buffer changes its shape as well."""
    trainer = make_trainer(folder)
    torch.manual_seed(0)
    network = Annealed()
    return Trainer(
        model=network,
        data=trainer.data,
        objective=trainer.objective,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.05),
        config=trainer.config,
        folder=folder,
    )


@pytest.mark.parametrize("boundaries", [2, 7])
def test_a_buffer_that_is_not_persistent_survives(tmp_path: Path, boundaries: int) -> None:
    """It is no part of model_best.pt, and of the state it is: no kill may reset it."""
    straight = annealed(tmp_path / "straight")
    expected = straight.train(3)
    first = annealed(tmp_path / "run")
    stop_after(first, boundaries)
    with pytest.raises(InterruptedRunError):
        first.train(3)
    second = annealed(tmp_path / "run")
    found = second.train(3)
    assert len(second.model.seen) == 5
    assert torch.equal(second.model.seen, straight.model.seen)
    assert torch.equal(weights(second), weights(straight))
    assert numbers(found) == numbers(expected)


class Plain(nn.Module):
    """A module with one attribute of any kind."""

    def __init__(self, thing: Any) -> None:
        super().__init__()
        self.thing = thing


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: 1, lambda m: setattr(m, "thing", m.thing + 1)),
        (lambda: None, lambda m: setattr(m, "thing", "text")),
        (lambda: torch.zeros(2), lambda m: m.thing.add_(1)),
        (lambda: torch.zeros(2), lambda m: setattr(m, "thing", torch.zeros(2))),
        (torch.Generator, lambda m: torch.rand(1, generator=m.thing)),
        (np.random.default_rng, lambda m: m.thing.random()),
        (np.random.RandomState, lambda m: m.thing.rand()),
        (random.Random, lambda m: m.thing.random()),
        (lambda: np.zeros(2), lambda m: m.thing.__iadd__(1)),
        (list, lambda m: m.thing.append(torch.zeros(1))),
        (lambda: {"a": [1]}, lambda m: m.thing["a"].append(2)),
        (lambda: 1, lambda m: setattr(m, "other", 1)),
    ],
)
def test_every_kind_of_plain_state_is_noticed(
    make: Callable[[], Any], change: Callable[[Plain], Any]
) -> None:
    """Counters, tensors, generators, lists: named once, when they have changed."""
    module = Plain(make())
    untracked = Untracked(nn.Sequential(module))
    assert untracked.changed() == []
    change(module)
    assert untracked.changed() in (["0.thing"], ["0.other"])
    assert untracked.changed() == []


def test_what_is_saved_or_only_a_mode_is_not_named() -> None:
    """Weights, buffers, train() and eval(), hooks, and a module that saves itself."""

    class Saves(Plain):
        def get_extra_state(self) -> Any:
            return self.thing

        def set_extra_state(self, state: Any) -> None:
            self.thing = state

    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), Saves(1))
    untracked = Untracked(network)
    network[:3](torch.ones(4, 3)).sum().backward()
    network[3].thing = 2
    network.eval()
    network[0].register_forward_hook(lambda *_: None)
    network[0].weight.data.add_(1)
    assert untracked.changed() == []


def test_the_trainer_says_it_once(tmp_path: Path, said: list[str]) -> None:
    """The network of these tests keeps its dropout masks in a list."""
    make_trainer(tmp_path).train(3)
    (line,) = [line for line in said if "no state holds it" in line]
    assert line.startswith("WARNING model.network: masks changed in training")
