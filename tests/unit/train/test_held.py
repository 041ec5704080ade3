"""What a validation has made of a network, told from what it was: by the bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outlast.train.held import Held


class Keeps(nn.Module):
    """Buffers of both kinds, one of them in the memory of a parameter, and extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("head", self.weight.detach()[:2])
        self.register_buffer("mean", torch.tensor([0.0, float("nan"), 1.0]))
        self.register_buffer("other", self.mean.clone())
        self.register_buffer("short", torch.ones(2, dtype=torch.complex64).conj(), persistent=False)
        self.register_buffer("none", torch.zeros(0))
        self.table: dict[Any, Any] = {"n": 1, "rows": [torch.ones(2), float("nan")]}

    def get_extra_state(self) -> Any:
        return self.table

    def set_extra_state(self, state: Any) -> None:
        self.table = state


def give(name: str, value: Tensor) -> Callable[[Keeps], Any]:
    """Put another tensor in the place of a buffer."""
    return lambda network: setattr(network, name, value)


def join(network: Keeps) -> None:
    """Two equal buffers become one."""
    network.other = network.mean


CHANGES: dict[str, Callable[[Keeps], Any]] = {
    "a number": lambda network: network.mean[2].add_(1),
    "behind the back of autograd": lambda network: network.mean.data.mul_(2),
    "through numpy": lambda network: network.mean.numpy().__setitem__(2, 5.0),
    "a sign of zero": lambda network: network.mean[0].neg_(),
    "a dtype": give("other", torch.tensor([0.0, float("nan"), 1.0]).double()),
    "a shape": give("other", torch.tensor([[0.0, float("nan"), 1.0]])),
    "no longer plain": give("other", torch.tensor([0.0, float("nan"), 1.0]).to_sparse()),
    "transient": lambda network: network.short.add_(1),
    "new": lambda network: network.register_buffer("new", torch.zeros(1)),
    "joined": join,
    "extra": lambda network: network.table.update(n=2),
    "a type in extra": lambda network: network.table.update(n=1.0),
    "a tensor in extra": lambda network: network.table["rows"][0].add_(1),
    "more extra": lambda network: network.table["rows"].append(None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_and_brought_back(name: str) -> None:
    """In a network that was made anew; what lies in a parameter is not touched."""
    network = Keeps()
    held = Held(network)
    assert held.changes() == {}, "NaN is NaN"
    CHANGES[name](network)
    changes = held.changes()
    assert changes
    assert "head" not in changes["rest"]
    other = Keeps()
    again = Held(other)
    again.load_changes(changes)
    again.refuse_moved()
    assert other.head.data_ptr() == other.weight.data_ptr()
    assert (other.other is other.mean) == (name == "joined")
    assert repr(dict(other.state_dict())) == repr(dict(network.state_dict()))
    assert repr(dict(other.named_buffers())) == repr(dict(network.named_buffers()))


def test_the_same_numbers_anew_are_no_change() -> None:
    """A mask that each pass makes again."""
    network = Keeps()
    held = Held(network)
    network.other = network.other.clone()
    network.mean.copy_(network.mean.clone())
    assert held.changes() == {}


def test_a_moved_parameter_is_no_change_to_bring_back() -> None:
    """It is refused in the end."""
    network = Keeps()
    held = Held(network)
    with torch.no_grad():
        network.weight.add_(1)
    assert held.changes() is None


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_buffer_that_stays_has_not_changed(layout: str) -> None:
    """The adjacency matrix of a graph: several ranks would begin each validation anew for it."""
    network = nn.Linear(3, 2)
    network.register_buffer("edges", getattr(torch.eye(3), layout)())
    held = Held(network)
    assert held.changes() == {}
    network.edges = getattr(2 * torch.eye(3), layout)()
    assert held.changes() != {}
