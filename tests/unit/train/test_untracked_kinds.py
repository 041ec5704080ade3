"""Where numbers hide that no state holds; and what torch keeps that no one need hear of."""

import argparse
import array
import ctypes
import functools
import itertools
import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import user_files
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from outlast.train import looking
from outlast.train.untracked import Untracked

pytestmark = pytest.mark.filterwarnings("ignore:.*(weight_norm|nested|oneDNN|lazy).*")


class Plain(nn.Module):
    """A module with one attribute of any kind."""

    def __init__(self, thing: Any) -> None:
        super().__init__()
        self.thing = thing


@dataclass
class Record:
    """A helper of one's own."""

    count: int = 0
    recent: list[float] = field(default_factory=list)


class Slotted:
    """Another, without a dictionary."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Averaged:
    """A moving average as it is often written: shadows by name."""

    def __init__(self) -> None:
        self.shadow = {"a": torch.zeros(3)}

    def update(self) -> None:
        """Put a new tensor in the place of the old one."""
        self.shadow["a"] = self.shadow["a"] + 1


def closure() -> Callable[[], int]:
    """A function that counts its calls."""
    calls = [0]

    def call() -> int:
        calls[0] += 1
        return calls[0]

    return call


def cyclic() -> dict[str, Any]:
    """A dictionary that holds itself."""
    thing: dict[str, Any] = {"n": 1}
    thing["me"] = thing
    return thing


def set_item(thing: Any, place: Any, value: Any) -> None:
    """As an expression."""
    thing[place] = value


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "deque": (lambda: deque([1.0], maxlen=2), lambda t: t.append(2.0)),
    "counter": (Counter, lambda t: t.update("a")),
    "dataclass": (Record, lambda t: setattr(t, "count", 1)),
    "deep in one": (Record, lambda t: t.recent.append(0.5)),
    "slots": (Slotted, lambda t: setattr(t, "count", 1)),
    "averages": (Averaged, lambda t: t.update()),
    "in two containers": (lambda: [{"a": Record()}], lambda t: setattr(t[0]["a"], "count", 1)),
    "closure": (closure, lambda t: t()),
    "partial": (lambda: functools.partial(max, [0]), lambda t: set_item(t.args[0], 0, 1)),
    "method": (lambda: Averaged().update, lambda t: t()),
    "count": (itertools.count, next),
    "array": (lambda: array.array("d", [0.0]), lambda t: set_item(t, 0, 1.0)),
    "set": (set, lambda t: t.add(3)),
    "minus one to minus two": (lambda: [-1], lambda t: set_item(t, 0, -2)),
    "late in a list": (lambda: [1.0] * 150, lambda t: set_item(t, 140, 2.0)),
    "late in a long one": (lambda: [0.0] * 200_000, lambda t: set_item(t, 150_000, 2.0)),
    "late in a list of lists": (lambda: [[0] for _ in range(300)], lambda t: t[290].append(1)),
    "generator in a list": (lambda: [random.Random(0)], lambda t: t[0].random()),
    "objects in an array": (lambda: np.array([None, 1]), lambda t: set_item(t, 0, 2)),
    "a large array": (lambda: np.zeros(300_000), lambda t: set_item(t, 200_000, 1)),
    "a large tensor": (lambda: torch.zeros(3, 200_000), lambda t: t[1, 10].fill_(1)),
    "shuffled": (lambda: torch.arange(9), lambda t: t.copy_(t.flip(0))),
    "half precision": (lambda: torch.zeros(3).bfloat16(), lambda t: t.add_(1)),
    "complex": (lambda: torch.zeros(3, dtype=torch.complex64).conj(), lambda t: t.add_(1j)),
    "sparse": (lambda: torch.eye(3).to_sparse(), lambda t: t.mul_(2)),
    "batch norm in a list": (lambda: [nn.BatchNorm1d(3)], lambda t: t[0](torch.randn(4, 3))),
    "parameter of one": (
        lambda: {"a": nn.Linear(2, 2)},
        lambda t: t["a"].weight.data.add_(1),
    ),
    "optimizer": (
        lambda: torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1),
        lambda t: t.param_groups[0].update(lr=0.01),
    ),
    "namespace": (lambda: argparse.Namespace(n=0), lambda t: setattr(t, "n", 1)),
    "of a thread": (threading.local, lambda t: setattr(t, "n", 1)),
    "of C": (lambda: ctypes.c_int(0), lambda t: setattr(t, "value", 1)),
    "cycle": (cyclic, lambda t: t.update(n=2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_in_any_kind_of_thing_is_named_once(kind: str) -> None:
    """And nothing is while nothing changes."""
    make, change = KINDS[kind]
    module = Plain(make())
    untracked = Untracked(nn.Sequential(module))
    assert untracked.changed() == []
    change(module.thing)
    assert untracked.changed() == ["0.thing"]
    assert untracked.changed() == []


def test_what_is_at_the_top_of_a_file_and_in_classes_is_named() -> None:
    """Generators, counters, classes, functions; of what it imports from its side, too."""
    network = user_files.Forgetful()
    untracked = Untracked(network)
    assert untracked.changed() == []
    network(torch.ones(2, 4))
    assert sorted(untracked.changed()) == [
        "DICE in user_files.py",
        "Forgetful.passes",
        "Ramp.level",
        "STEPS in beside_user_files.py",
        "step in user_files.py",
    ]


def test_what_hooks_and_parameters_keep_is_named() -> None:
    """A hook that counts, one that comes late, one of a gradient; an attribute of a weight."""
    layer = nn.Linear(2, 2)
    network = nn.Sequential(layer, nn.Tanh())
    count, calls = closure(), closure()
    layer.register_forward_hook(lambda *_: count() and None)
    layer.bias.register_hook(lambda gradient: gradient * calls())
    untracked = Untracked(network)
    network(torch.ones(1, 2))
    assert untracked.changed() == ["0: a hook (_forward_hooks)"]
    network(torch.ones(1, 2)).sum().backward()
    assert untracked.changed() == ["0.bias: a hook"]
    layer.weight.n = 1  # type: ignore[attr-defined]
    network[1].register_forward_pre_hook(lambda *_: None)
    assert untracked.changed() == ["0.weight.n", "1: a hook (_forward_pre_hooks)"]
    assert untracked.changed() == []


def test_what_methods_keep_is_named() -> None:
    """In a default, in an attribute, in a class within the class, behind a name with __ ."""
    network = user_files.Methods()
    untracked = Untracked(network)
    assert untracked.changed() == []
    network(torch.ones(2, 4))
    assert sorted(untracked.changed()) == [
        "Methods.Settings.level",
        "Methods.by_attribute",
        "Methods.by_default",
        "__calls in user_files.py",
    ]


def test_what_has_gone_is_named() -> None:
    """A flag may be an attribute that is there or not."""
    module = Plain(1)
    untracked = Untracked(module)
    del module.thing
    assert untracked.changed() == ["thing"]


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Tensor]]]] = {
    "LSTM": (lambda: nn.LSTM(3, 4, 2, bidirectional=True), lambda: [torch.randn(5, 2, 3)]),
    "projected": (lambda: nn.LSTM(3, 4, proj_size=2), lambda: [torch.randn(5, 2, 3)]),
    "GRU": (lambda: nn.GRU(3, 4, dropout=0.5, num_layers=2), lambda: [torch.randn(5, 2, 3)]),
    "RNN": (lambda: nn.RNN(3, 4), lambda: [torch.randn(5, 2, 3)]),
    "cell": (lambda: nn.LSTMCell(3, 4), lambda: [torch.randn(5, 3)]),
    "attention": (lambda: nn.MultiheadAttention(4, 2), lambda: [torch.randn(5, 2, 4)] * 3),
    "Transformer": (
        lambda: nn.Transformer(4, 2, 1, 1, 8),
        lambda: [torch.randn(5, 2, 4), torch.randn(3, 2, 4)],
    ),
    "weight_norm": (
        lambda: parametrizations.weight_norm(nn.Linear(3, 4)),
        lambda: [torch.randn(5, 3)],
    ),
    "old weight_norm": (
        lambda: nn.utils.weight_norm(nn.Linear(3, 4)),
        lambda: [torch.randn(5, 3)],
    ),
    "spectral_norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(3, 4)),
        lambda: [torch.randn(5, 3)],
    ),
    "old spectral_norm": (
        lambda: nn.utils.spectral_norm(nn.Linear(3, 4)),
        lambda: [torch.randn(5, 3)],
    ),
    "orthogonal": (
        lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
        lambda: [torch.randn(5, 4)],
    ),
    "pruned": (
        lambda: prune.l1_unstructured(nn.Linear(3, 4), "weight", 0.5),
        lambda: [torch.randn(5, 3)],
    ),
    "pruned LSTM": (
        lambda: prune.l1_unstructured(nn.LSTM(3, 4), "weight_ih_l0", 0.5),
        lambda: [torch.randn(5, 2, 3)],
    ),
    "BatchNorm": (lambda: nn.BatchNorm1d(3, momentum=None), lambda: [torch.randn(5, 3)]),
    "InstanceNorm": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        lambda: [torch.randn(5, 3, 2)],
    ),
    "Embedding": (lambda: nn.Embedding(7, 3), lambda: [torch.randint(7, (5,))]),
    "LazyLinear": (lambda: nn.LazyLinear(3), lambda: [torch.randn(5, 3)]),
    "LazyBatchNorm": (lambda: nn.LazyBatchNorm1d(), lambda: [torch.randn(5, 3)]),
    "Conv": (lambda: nn.Conv1d(3, 4, 2), lambda: [torch.randn(5, 3, 4)]),
    "averaged": (
        lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(3, 4)),
        lambda: [torch.randn(5, 3)],
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_of_torch_gives_a_false_alarm(name: str) -> None:
    """Through training, validation and training again: what they keep is made from parameters."""
    make, rows = LAYERS[name]
    layer = make()
    layer.eval()(*rows())  # as every network is tried when it is built: lazy ones are made then
    network = nn.Sequential(layer)
    untracked = Untracked(network)
    trained = [weight for weight in layer.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for _ in range(2):
        result = layer.train()(*rows())
        first = result[0] if isinstance(result, tuple) else result
        if first.requires_grad:
            first.square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            layer.eval()(*rows())
        assert untracked.changed() == []


def test_what_leads_back_to_a_registered_module_is_no_news() -> None:
    """A list of layers beside the layers, a helper that knows its owner, a view of a weight."""

    class Knows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.layers = [self.first]
            self.bound = self.first.forward
            self.row = self.first.weight.detach()[1]

    network = Knows()
    untracked = Untracked(network)
    network.first.weight.data.add_(1)
    network.first.weight.grad = torch.ones(3, 3)
    assert untracked.changed() == []


def test_looking_is_bounded_and_takes_little_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain without end is followed a while; the next look waits a hundred times the last."""

    class Link:
        next: Any = None

    first = last = Link()
    for _ in range(100_000):
        last.next = Link()
        last = last.next
    many = {number: [number] for number in range(100_000)}
    module = Plain([first, many])
    look = looking.Look(module)
    look.at(module.thing)
    assert len(look._seen) <= looking.MOST_THINGS + 1
    untracked = Untracked(module)
    assert untracked.news() == []
    module.thing = 1
    monkeypatch.setattr(untracked, "_not_before", float("inf"))
    assert untracked.news() == []
    monkeypatch.setattr(untracked, "_not_before", 0.0)
    assert untracked.news() == ["thing"]
