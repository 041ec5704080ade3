"""A trainer in a few lines: data in memory, a small network, one rank unless told otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outlast.config import parse
from outlast.data.dataset import DataSet
from outlast.data.roles import read_roles
from outlast.distributed import Distributed
from outlast.objective.build import build_objective
from outlast.sections import Config
from outlast.train.run import add_heads, build_optimizer
from outlast.train.trainer import Trainer


class Net(nn.Module):
    """Two linear layers with dropout; keeps the dropped representation of each training pass."""

    def __init__(self, outputs: int, dropout: float = 0.0):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, outputs)
        self.masks: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.body(rows.to(next(self.parameters()).dtype))
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


def study_data(train: int = 30, validation: int = 12, classes: int = 2, seed: int = 0) -> DataSet:
    """The same with a site of known label noise, a confound and a target; some of them unknown."""
    plain, dice = small_data(train, validation, classes, seed), np.random.default_rng(seed + 1)
    rows = len(plain.label)
    target = plain.inputs["x"].sum(1) + dice.normal(0, 0.3, rows)
    raw = {
        "noise_group": dice.choice(["clean", "noisy"], rows),
        "confound": dice.choice(["m", "f", "d", ""], rows),
        "target": np.where(dice.random(rows) < 0.3, np.nan, target),
    }
    splits = plain.splits
    return DataSet.from_arrays(
        plain.inputs, plain.label, splits, plain.classes, roles=read_roles(raw, rows)
    )


def study_config(every_seconds: float = 1e6, **training: Any) -> Config:
    """Everything at once: heads, label noise, augmentation, clippings, warm-up, plateau, parts."""
    keys = {
        "grad_accum_split": 3,
        "quantile_grad_clip": True,
        "max_grad_norm": 5.0,
        "warmup_epochs": 2,
        "augment": {"jitter": 0.05, "min_scale": 0.9, "max_scale": 1.1},
        "scheduler": {"name": "reduce_on_plateau", "patience": 0},
        "batch_size": 8,
        "learning_rate": 0.05,
    }
    roles = {"noise_group": "site", "confound": "sex", "target": "age"}
    return parse(
        {
            "data": {"source": "memory", **roles},
            "loss": {
                "name": "noise_corrected_bce",
                "label_noise": {"rates": {"noisy": 0.2}},
                "label_smoothing": 0.05,
                "class_weights": "auto",
            },
            "adversary": {"strength": 0.5, "anneal_epochs": 2},
            "regression": {"weight": 0.3},
            "training": keys | training,
            "checkpoint": {"every_seconds": every_seconds},
        }
    )


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
    # in the network's dtype, to compare sums to the last digits
    objective = replace(build_objective(config, data), dtype=dtype)
    torch.manual_seed(config.training.seed)
    device = distributed.device if distributed else torch.device("cpu")
    network = add_heads(Net(objective.num_outputs, dropout), config, data, objective)
    model = network.to(device, dtype)
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
    """All weights as one vector, those of the heads too."""
    return torch.cat([parameter.detach().flatten() for parameter in trainer.study.parameters()])
