"""What training minimizes: the main loss over the normaliser of the GLOBAL batch.

Each rank and each accumulation part holds a sum over its own rows; all divide by the same
number, so that the gradients add up to that of the unsplit batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlast.errors import ConfigError
from outlast.objective.losses import bce, cross_entropy
from outlast.sections import LossSection

LossSum = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, LossSum] = {"bce": bce, "cross_entropy": cross_entropy}


@dataclass(frozen=True)
class Objective:
    """The main loss of a run.

    Attributes:
        name: Resolved name, never ``auto``.
        num_outputs: Logits per row that it needs.
    """

    name: str
    num_outputs: int

    def loss_sum(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the loss summed over rows, computed in float32 whatever the logits' dtype."""
        return LOSSES[self.name](logits.float(), label)

    def normaliser(self, label: NDArray[np.int64]) -> float:
        """Return what the loss sums of a batch are divided by, from the whole batch's labels."""
        return float(len(label))

    def mean_loss(self, logits: Tensor, label: Tensor) -> float:
        """Return the mean loss over a whole split, in float64: the number that is reported."""
        return float(LOSSES[self.name](logits.double(), label)) / len(label)


def count_correct(logits: Tensor, label: Tensor) -> Tensor:
    """Return the number of rows whose raw logits decide for their label, as an int64 scalar.

    On the logits (argmax, or > 0), never on probabilities: half precision ties them.
    """
    return (decide(logits) == label).sum()


def decide(logits: Tensor) -> Tensor:
    """Return the predicted class index of each row, int64, shape (rows,)."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        return (logits.reshape(-1) > 0).to(torch.int64)
    return logits.argmax(dim=1)


def build_objective(section: LossSection, classes: list[str]) -> Objective:
    """Choose the loss for these classes.

    Raises:
        ConfigError: The loss cannot be used with that many classes. Nothing is switched silently.
    """
    name = section.name
    if name == "auto":
        name = "bce" if len(classes) == 2 else "cross_entropy"
    if name == "bce" and len(classes) != 2:
        raise ConfigError(
            [
                f"loss.name: bce is for 2 classes, and the data have {len(classes)}"
                f" ({', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''});"
                " use cross_entropy or auto"
            ]
        )
    return Objective(name, 1 if name == "bce" else len(classes))
