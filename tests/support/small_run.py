"""A trainer in a few lines: data in memory, a small network, one rank unless told otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outlast.config import parse
from outlast.data.store import DataSet
from outlast.distributed import Distributed
from outlast.objective.losses import bce, cross_entropy
from outlast.objective.objective import Objective, build_objective
from outlast.sections import Config
from outlast.train.run import build_optimizer
from outlast.train.trainer import Trainer


class DoubleObjective(Objective):
    """The same losses without the cast to float32, to compare sums to the last digits."""

    def loss_sum(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the loss summed over rows in the logits' dtype."""
        return (bce if self.name == "bce" else cross_entropy)(logits, label)


class Net(nn.Module):
    """Two linear layers with dropout; keeps the dropped representation of each training pass."""

    def __init__(self, outputs: int, dropout: float = 0.0, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.dtype = dtype
        self.body = nn.Linear(4, 8, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, outputs, dtype=dtype)
        self.masks: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.body(rows.to(self.dtype))
        if self.training:
            self.masks.append(self.dropout(torch.ones_like(hidden)))
            hidden = hidden * self.masks[-1]
        logits: Tensor = self.head(hidden.tanh())
        return logits


def small_data(
    train: int = 30, validation: int = 12, classes: int = 2, seed: int = 0, noise: float = 1.0
) -> DataSet:
    """Rows of four values around a centre per class, training rows first."""
    dice = np.random.default_rng(seed)
    label = np.arange(train + validation) % classes
    centres = dice.normal(0, 1, (classes, 4))
    rows = (centres[label] + noise * dice.normal(0, 1, (len(label), 4))).astype(np.float32)
    splits = {"train": np.arange(train), "validation": np.arange(train, train + validation)}
    return DataSet.from_arrays({"x": rows}, label, splits, [f"c{i}" for i in range(classes)])


def small_config(every_seconds: float = 1e6, **training: Any) -> Config:
    """A config with these training keys; the network and the data are passed by hand."""
    defaults = {"epochs": 3, "batch_size": 8, "learning_rate": 0.05}
    return parse(
        {
            "data": {"source": "memory"},
            "training": defaults | training,
            "checkpoint": {"every_seconds": every_seconds},
        }
    )


def make_trainer(
    folder: Path,
    data: DataSet | None = None,
    config: Config | None = None,
    *,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
    distributed: Distributed | None = None,
    **training: Any,
) -> Trainer:
    """Build all parts anew, as each attempt does."""
    data, config = data or small_data(), config or small_config(**training)
    objective = build_objective(config.loss, data.classes)
    if dtype == torch.float64:
        objective = DoubleObjective(objective.name, objective.num_outputs)
    torch.manual_seed(config.training.seed)
    model = Net(objective.num_outputs, dropout, dtype)
    folder.mkdir(exist_ok=True)
    return Trainer(
        model=model,
        data=data,
        objective=objective,
        optimizer=build_optimizer(config.training, model),
        config=config,
        folder=folder,
        distributed=distributed,
    )


def weights(trainer: Trainer) -> Tensor:
    """All weights as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
