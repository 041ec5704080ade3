import pytest
import torch
from torch import nn

from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.train.gradients import FlatGradients


class Mixed(nn.Module):
    """Float32 and float64 layers, one frozen, one that no row uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.wide = nn.Linear(4, 2, dtype=torch.float64)
        self.unused = nn.Linear(5, 5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(self.first(rows).relu())
        result: torch.Tensor = self.wide(hidden.double())
        return result


ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


def test_gradients_are_those_of_plain_backward() -> None:
    """Bit for bit, in each dtype; frozen layers have none, unused ones have zeros."""
    plain, flat = Mixed(), Mixed()
    FlatGradients(flat, Distributed())
    for model in (plain, flat):
        model(ROWS).square().sum().backward()
    for (name, one), other in zip(plain.named_parameters(), flat.parameters(), strict=True):
        if name.startswith("unused"):
            assert one.grad is None
            assert other.grad is not None
            assert not other.grad.any()
        elif name.startswith("frozen"):
            assert one.grad is None
            assert other.grad is None
        else:
            assert one.grad is not None
            assert other.grad is not None
            assert torch.equal(one.grad, other.grad), name
            assert other.grad.dtype == other.dtype


def test_zero_forgets_and_backward_adds() -> None:
    """Two passes add up; after zero() the next pass starts anew, in the same memory."""
    model = Mixed()
    gradients = FlatGradients(model, Distributed())
    grad = model.first.weight.grad
    assert grad is not None

    def backward() -> None:
        model(ROWS).sum().backward()

    backward()
    once = grad.clone()
    backward()
    assert torch.allclose(grad, 2 * once)
    gradients.zero()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert not any(p.grad is None or p.grad.any() for p in trained), "in each dtype"
    backward()
    assert torch.equal(grad, once)
    assert model.first.weight.grad is grad


def test_an_optimizer_steps_on_the_views() -> None:
    """After a step the weights are those of an optimizer with plain gradients."""
    plain, flat = Mixed(), Mixed()
    FlatGradients(flat, Distributed())
    for model in (plain, flat):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        model(ROWS).square().mean().backward()
        optimizer.step()
    for one, other in zip(plain.parameters(), flat.parameters(), strict=True):
        assert torch.equal(one, other)


def test_views_survive_loading_of_weights() -> None:
    """load_state_dict, as at a resume, does not take the gradients out of the buffer."""
    model = Mixed()
    gradients = FlatGradients(model, Distributed())
    model.load_state_dict(Mixed().state_dict())
    model(ROWS).sum().backward()
    grad = model.first.weight.grad
    assert grad is not None
    assert grad.any()
    gradients.zero()
    assert not grad.any()


def test_a_buffer_that_changes_its_form_is_refused_on_several_ranks() -> None:
    """Ranks of different forms would wait for each other; new values, in a new tensor, are fine."""
    model = nn.BatchNorm1d(3)
    gradients = FlatGradients(model, Distributed(0, 2))
    gradients._buffers()
    model.running_mean = torch.ones(3)
    assert any(buffer is model.running_mean for buffer in gradients._buffers().values())
    model.running_mean = torch.ones(4)
    with pytest.raises(ModelError, match="its buffer running_mean changes shape"):
        gradients._buffers()
    model.running_mean = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ModelError, match="its buffer running_mean changes shape"):
        gradients._buffers()


@pytest.mark.parametrize("batch_norm", [False, True])
def test_one_rank_reduces_nothing(batch_norm: bool) -> None:
    """Alone, reduce() and sync_buffers() change neither gradients nor buffers."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4) if batch_norm else nn.Identity())
    gradients = FlatGradients(model, Distributed())
    model(ROWS).square().sum().backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    buffers = [b.clone() for b in model.buffers()]
    gradients.reduce()
    gradients.sync_buffers()
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))
