"""Tensors of a network that share memory: they do after a resume if, and only if, they did."""

from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import Own, keeps_the_law, leaves, trainer_of
from test_buffers import Mean
from test_extra_state import ExtraDict
from torch import Tensor

from outlast.model.copies import copied


class LeavesWeight(Mean):
    """A mean of a weight, in the memory of the weight until the first step."""

    def extra(self) -> None:
        self.keep("mean", self.body.weight.detach())

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * self.body.weight.detach()

    def read(self) -> Tensor:
        return self.mean.sum(1)


class StaysWithWeight(LeavesWeight):
    """For good."""

    def update(self, hidden: Tensor) -> None:
        """By the optimizer."""


class JoinsWeight(LeavesWeight):
    """From the first step on."""

    def extra(self) -> None:
        self.keep("mean", torch.zeros(8, 4))

    def update(self, hidden: Tensor) -> None:
        self.mean = self.body.weight.detach()


class Views(Mean):
    """Two views of one memory, which stay that."""

    def extra(self) -> None:
        super().extra()
        self.keep("rows", self.mean.view(2, 4))

    def read(self) -> Tensor:
        return self.mean + 0.5 * self.rows.reshape(-1)


class ViewsComeApart(Views):
    """At the first step."""

    def update(self, hidden: Tensor) -> None:
        self.mean = self.mean * 0.9 + 0.1 * hidden.mean(0)
        self.rows = self.rows + 1


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    "kind", [LeavesWeight, StaysWithWeight, JoinsWeight, Views, ViewsComeApart]
)
def test_a_buffer_shares_what_it_shared(kind: type[Mean], persistent: bool, tmp_path: Path) -> None:
    """And is written over nothing else."""
    keeps_the_law(type(kind.__name__, (kind,), {"persistent": persistent}), tmp_path)


class ExtraViews(ExtraDict):
    """A tensor and a part of it."""

    def extra(self) -> None:
        mean = torch.zeros(8)
        self.table = {"mean": mean, "part": mean[2:6]}

    def note(self) -> None:
        self.table["mean"].lerp_(self.body.bias.detach(), 0.1)
        self.table["part"].add_(0.01)

    def factor(self) -> Any:
        return 1 + self.table["mean"].sum()


def test_extra_state_shares_what_it_shared(tmp_path: Path) -> None:
    """A view is one after a resume."""
    keeps_the_law(ExtraViews, tmp_path)


def test_a_copy_holds_views_of_one_memory() -> None:
    """Of any dtype and layout; what merely lies side by side is copied alone."""
    memory = torch.arange(12.0)
    one = copied([memory, memory.view(3, 4).t(), memory[:4].view(torch.int32)])
    one[0].add_(1)
    assert leaves(one[1]) == leaves((memory + 1).view(3, 4).t())
    assert leaves(one[2]) == leaves((memory + 1)[:4].view(torch.int32))
    apart = copied([memory[:4], memory[4:]])
    assert [tensor.untyped_storage().nbytes() for tensor in apart] == [16, 32]


class ExtraCycle(Own):
    """A list that holds itself."""

    def extra(self) -> None:
        self.items: list[Any] = [1]
        self.items.append(self.items)

    def get_extra_state(self) -> Any:
        return self.items

    def set_extra_state(self, state: Any) -> None:
        self.items = state


def test_a_list_that_holds_itself_is_kept(tmp_path: Path) -> None:
    """It is one object, as any other."""
    trainer_of(ExtraCycle, tmp_path).train(1, 0)
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    items = next(value for name, value in state["weights"].items() if "_extra_state" in name)
    assert items[1] is items
