"""What ranks hold for themselves: told apart by content, whatever has changed it."""

from typing import Any

import pytest
import torch
from torch import nn

from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.train.apart import held_apart, refuse_apart


class Moving(nn.Module):
    """A frozen parameter, a trained one, a buffer, and an extra state."""

    def __init__(self, extra: Any = None, centre: torch.Tensor | None = None) -> None:
        super().__init__()
        centre = torch.arange(1.0, 7.0).reshape(2, 3) if centre is None else centre
        self.centre = nn.Parameter(centre, requires_grad=False)
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("mean", torch.zeros(3))
        self.extra = extra

    def get_extra_state(self) -> Any:
        return self.extra


@pytest.mark.parametrize(
    "centre",
    [
        torch.arange(7.0),
        torch.arange(8.0),
        torch.arange(8.0)[1:],
        torch.arange(9.0)[1:],
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(12.0).reshape(2, 6)[:, ::2],
        torch.ones(1, 3).expand(2, 3),
        torch.arange(5, dtype=torch.uint8),
        torch.arange(5).to(torch.bfloat16),
        torch.arange(5).to(torch.complex64),
        torch.arange(5).to(torch.complex128),
        torch.arange(5) > 2,
        torch.tensor(3.0),
    ],
)
def test_a_frozen_parameter_is_told_by_its_content(centre: torch.Tensor) -> None:
    """Of any dtype and layout; also where .data is changed, which counts no version."""
    one, other = Moving(centre=centre.clone()), Moving(centre=centre)
    assert held_apart(one)["its frozen parameter centre"]
    assert held_apart(one) == held_apart(other)
    one.centre.data.fill_(0)
    assert held_apart(one) != held_apart(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, 1.0),
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}),
        ([torch.ones(2)], [torch.ones(2, dtype=torch.bfloat16)]),
        ({1}, {2}),
        (torch.ones(()), torch.ones(1)),
    ],
)
def test_an_extra_state_is_told_by_its_content(one: Any, other: Any) -> None:
    """Plain values and tensors, in any container."""
    assert held_apart(Moving(one)) == held_apart(Moving(one))
    assert held_apart(Moving(one)) != held_apart(Moving(other))


def test_equal_content_in_another_order_is_equal() -> None:
    """Sets and mappings come in any order; an object of a class is nobody's content."""
    same: list[tuple[Any, Any]] = [({"a": 1, "b": 2}, {"b": 2, "a": 1}), (object(), object())]
    for one, other in same:
        assert held_apart(Moving(one)) == held_apart(Moving(other))


def test_what_the_ranks_exchange_is_left_out() -> None:
    """Buffers become rank 0's."""
    network = Moving()
    network.mean.add_(1)
    assert held_apart(network) == held_apart(Moving())


def test_a_trained_parameter_is_looked_at_too() -> None:
    """Equal gradients keep it equal, but for what forward itself does to it."""
    network = Moving()
    network.weight.data.add_(1)
    name = "its parameter weight"
    assert held_apart(network)[name] != held_apart(Moving())[name]
    assert held_apart(nn.Identity()) == {}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse", "sparse_csr", "sparse_csc"])
def test_a_sparse_buffer_is_told_by_its_content(layout: str) -> None:
    """The ranks exchange none: one that changes with the rows is refused, another is left alone."""

    def network(values: torch.Tensor) -> nn.Module:
        made = nn.Module()
        made.register_buffer("graph", getattr(values, f"to_{layout}")())
        return made

    one, other = torch.eye(3), 2 * torch.eye(3)
    assert held_apart(network(one)) == held_apart(network(one.clone()))
    for values in (other, one.flip(0)):
        assert held_apart(network(one)) != held_apart(network(values))
    assert list(held_apart(network(one))) == ["its sparse buffer graph"]


def test_one_rank_is_never_refused() -> None:
    """It holds all there is."""
    refuse_apart(Moving(), Distributed())


def test_an_embedding_that_shortens_its_rows_is_refused_on_several_ranks() -> None:
    """Each rank would shorten those that it sees."""
    network = nn.Sequential(nn.Embedding(12, 8, max_norm=0.5))
    with pytest.raises(ModelError, match=r"0 has max_norm, .* launch\.processes: 1"):
        refuse_apart(network, Distributed(world_size=2))
    refuse_apart(network, Distributed())
