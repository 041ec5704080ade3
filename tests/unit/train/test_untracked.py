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

from outlast.errors import CheckpointError, InterruptedRunError
from outlast.model.weights import load_weights
from outlast.train.trainer import Trainer
from outlast.train.untracked import Untracked


class Growing(nn.Linear):
    """Its logits depend on a buffer that the training makes longer."""

    def __init__(self, start: Tensor | None, persistent: bool) -> None:
        super().__init__(4, 1)
        self.persistent = persistent
        if start is None or len(start):
            self.register_buffer("seen", start, persistent=persistent)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            seen = getattr(self, "seen", None)
            last = torch.zeros(1) if seen is None else seen
            self.register_buffer(
                "seen", torch.cat([last, last[-1:] + 0.1])[-5:], persistent=self.persistent
            )
        return super().forward(rows) * (1 + self.seen.sum())


def growing(folder: Path, start: Tensor | None, persistent: bool) -> Trainer:
    """A trainer for it, made anew as in each attempt."""
    trainer = make_trainer(folder)
    torch.manual_seed(0)
    network = Growing(start, persistent)
    return Trainer(
        model=network,
        data=trainer.data,
        objective=trainer.objective,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.05),
        config=trainer.config,
        folder=folder,
    )


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("start", [torch.zeros(1), torch.zeros(5), None, torch.zeros(0)], ids=str)
@pytest.mark.parametrize("boundaries", [2, 7])
def test_a_buffer_of_any_kind_survives(
    tmp_path: Path, start: Tensor | None, boundaries: int, persistent: bool
) -> None:
    """Also one that the state dict leaves out, that was None, or that forward() has added."""
    straight = growing(tmp_path / "straight", start, persistent)
    expected = straight.train(3)
    first = growing(tmp_path / "run", start, persistent)
    stop_after(first, boundaries)
    with pytest.raises(InterruptedRunError):
        first.train(3)
    second = growing(tmp_path / "run", start, persistent)
    found = second.train(3)
    assert len(second.model.seen) == 5
    assert torch.equal(second.model.seen, straight.model.seen)
    assert torch.equal(weights(second), weights(straight))
    assert numbers(found) == numbers(expected)
    if persistent:
        best = Growing(start, persistent)
        load_weights(best, torch.load(tmp_path / "run/model_best.pt")["weights"])
        assert len(best.seen) == 5


def test_a_network_of_another_form_is_refused_in_one_line(tmp_path: Path) -> None:
    """Its code is the same, and what it builds depends on something else: no traceback of torch."""
    make_trainer(tmp_path).train(1)
    trainer = make_trainer(tmp_path)
    trainer.model.body = nn.Linear(4, 9)
    with pytest.raises(CheckpointError, match=r"model\.network: .*another form.*size mismatch"):
        trainer.train(2)


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
        (lambda: torch.zeros(2), lambda m: setattr(m, "thing", torch.ones(2))),
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
    network[0].weight.data.add_(1)
    assert untracked.changed() == []


def test_the_trainer_says_it_once(tmp_path: Path, said: list[str]) -> None:
    """The network of these tests keeps its dropout masks in a list."""
    make_trainer(tmp_path).train(3)
    (line,) = [line for line in said if "no state holds it" in line]
    assert line.startswith("WARNING model.network: masks changed in training")
