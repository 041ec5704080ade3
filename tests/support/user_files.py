"""A user's file that keeps things at its top, in a class, and in what it imports from its side."""

import beside_user_files
import numpy as np
import torch
from torch import Tensor, nn

DICE = np.random.default_rng(0)
LIMIT = 3


class Ramp:
    """A schedule of one's own, shared by all."""

    level = 0.0


class Forgetful(nn.Module):
    """Counts its passes in every such place."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, rows: Tensor) -> Tensor:
        type(self).passes += 1
        Ramp.level += 0.1
        beside_user_files.STEPS["n"] += 1
        step.calls += 1
        noise = torch.from_numpy(DICE.normal(0, 0.1, rows.shape)).float()
        return self.head(rows + noise)


def step() -> int:
    """A function with an attribute."""
    return step.calls


step.calls = 0


__calls = [0]


class Methods(nn.Module):
    """Keeps things in its methods, in a class of its own, and behind a name of two underscores."""

    class Settings:
        """Of the class."""

        level = 0

    def by_default(self, calls: list[int] = [0]) -> None:  # noqa: B006
        calls[0] += 1

    @staticmethod
    def by_attribute() -> None:
        Methods.by_attribute.calls = getattr(Methods.by_attribute, "calls", 0) + 1

    def forward(self, rows: Tensor) -> Tensor:
        self.by_default()
        self.by_attribute()
        Methods.Settings.level += 1
        globals()["__calls"][0] += 1
        return rows
