"""What training minimizes: main loss and heads, each over the normaliser of the GLOBAL batch.

Each rank and each accumulation part holds sums over its own rows; all divide by the same numbers,
so that the gradients add up to that of the unsplit batch. The numbers come from the labels, which
every rank has at hand: no collective, no wait for the device.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outlast.data.batches import Batch
from outlast.data.dataset import DataSet
from outlast.data.roles import UNKNOWN, valid_targets
from outlast.data.sampling import Rows
from outlast.model.heads import Outputs
from outlast.objective.losses import (
    bce,
    cross_entropy,
    focal,
    noise_corrected_bce,
    noise_corrected_ce,
)


@dataclass(frozen=True)
class Normalisers:
    """What the sums of one global batch are divided by; never 0.

    Attributes:
        rows: Of the batch.
        main: The same, or the sum of their class weights.
        confound: Rows whose confound is known.
        target: Rows whose target is valid.
    """

    rows: float
    main: float
    confound: float = 1.0
    target: float = 1.0


@dataclass(frozen=True)
class Objective:
    """The losses of a run.

    Attributes:
        name: Resolved name of the main loss, never ``auto``.
        num_outputs: Logits per row that it needs.
        smoothing: Of the label, in training only.
        gamma: Of ``focal``.
        neg_gamma: Of ``focal``, for the negatives.
        weights: float32 (classes,), or None: all 1. On the device; and a copy on the host.
        rates: float64, of each noise group or class: ``noise_corrected_*``.
        sink: Class index, of ``noise_corrected_ce``.
        regression_weight: Factor of the regression loss.
        unit_target: Targets lie in [0, 1], and negative ones are missing.
        target_mean: Of the valid training targets; 0 for ``unit_target``.
        target_std: The same; 1 for ``unit_target`` and for a constant target.
        dtype: In which losses are computed.
    """

    name: str
    num_outputs: int
    smoothing: float = 0.0
    gamma: float = 2.0
    neg_gamma: float | None = None
    weights: Tensor | None = None
    host_weights: np.ndarray | None = None
    rates: Tensor | None = None
    sink: int = 0
    regression_weight: float = 0.0
    unit_target: bool = False
    target_mean: float = 0.0
    target_std: float = 1.0
    dtype: torch.dtype = torch.float32

    def to(self, device: torch.device) -> "Objective":
        """Return the same with its tensors on ``device``."""
        weights = None if self.weights is None else self.weights.to(device)
        rates = None if self.rates is None else self.rates.to(device)
        return replace(self, weights=weights, rates=rates)

    def part(
        self, outputs: Outputs, batch: Batch, normalisers: Normalisers
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what one part of a batch adds to the total loss, and the sums for the meter.

        Args:
            outputs: Of the network for the rows of ``batch``.
            batch: A part of the global batch.
            normalisers: Of the global batch.
        """
        main = self.main_sum(outputs.logits, batch)
        total = main / normalisers.main
        # so that the sum over an epoch is that of the batches' means, weighted by rows
        scale = normalisers.rows / normalisers.main
        sums = {
            "loss": main if scale == 1 else main * scale,
            "correct": count_correct(outputs.logits, batch.label),
        }
        if outputs.confound is not None:
            adversary = self.adversary_sum(outputs.confound, batch)
            total = total + adversary / normalisers.confound
            sums |= {
                "adversary_loss": adversary,
                # -1 is no category: an unknown confound is never right
                "adversary_correct": count_correct(outputs.confound, batch.roles["confound"]),
                "adversary_known": (batch.roles["confound"] != UNKNOWN).sum(),
            }
        if outputs.target is not None:
            regression = self.regression_sum(outputs.target, batch)
            total = total + self.regression_weight * regression / normalisers.target
            sums |= {
                "regression_loss": regression,
                "regression_valid": self.valid(batch.roles["target"]).sum(),
            }
        return total, sums

    def rows_loss(self, logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """Return the unweighted main loss of each row, (rows,), in the logits' dtype."""
        label = batch.label
        if self.name == "bce":
            return bce(logits, label, smoothing)
        if self.name == "focal":
            return focal(logits, label, self.gamma, self.neg_gamma, smoothing)
        if self.name == "cross_entropy":
            return cross_entropy(logits, label, smoothing)
        assert self.rates is not None, "build_objective has read them"
        if self.name == "noise_corrected_bce":
            rate = self.rates[batch.roles["noise_group"]]
            return noise_corrected_bce(logits, label, rate, smoothing)
        return noise_corrected_ce(logits, label, self.rates, self.sink, smoothing)

    def main_sum(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the weighted main loss summed over rows, computed in ``dtype`` (float32)."""
        loss = self.rows_loss(logits.to(self.dtype), batch, self.smoothing)
        return (loss if self.weights is None else loss * self.weights[batch.label]).sum()

    def adversary_sum(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of the confound summed over the rows where it is known."""
        return functional.cross_entropy(
            logits.to(self.dtype),
            batch.roles["confound"],
            ignore_index=UNKNOWN,
            reduction="sum",
        )

    def regression_sum(self, prediction: Tensor, batch: Batch) -> Tensor:
        """Return the squared error summed over the rows that have a target.

        Args:
            prediction: (rows,), standardized, or in [0, 1] with ``unit_target``.
            batch: With ``target`` in its own unit.
        """
        valid = self.valid(batch.roles["target"])
        # standardized in float64, before anything is rounded
        target = ((batch.roles["target"] - self.target_mean) / self.target_std).to(self.dtype)
        # not error * valid: NaN x 0 is NaN, in the gradient too
        error = torch.where(valid, prediction.to(self.dtype) - torch.where(valid, target, 0.0), 0.0)
        return error.square().sum()

    def valid(self, target: Any) -> Any:
        """Tell which targets count, (rows,) bool; of an array or a tensor."""
        return valid_targets(target, self.unit_target)

    def normalisers(self, data: DataSet, rows: Rows) -> Normalisers:
        """Return the normalisers of a global batch, from the whole batch's labels."""
        main = float(len(rows))
        if self.host_weights is not None:
            main = float(self.host_weights[data.label[rows]].sum(dtype=np.float64))
        confound, target = data.roles.get("confound"), data.roles.get("target")
        known = 1 if confound is None else int((confound[rows] != UNKNOWN).sum())
        valid = 1 if target is None else int(self.valid(target[rows]).sum())
        return Normalisers(float(len(rows)), main, float(max(1, known)), float(max(1, valid)))

    def mean_loss(self, logits: Tensor, batch: Batch) -> float:
        """Return the mean main loss over a whole split, without smoothing and class weights.

        In float64 on the host: the number that is reported.
        """
        on_host = self.to(torch.device("cpu"))
        return float(on_host.rows_loss(logits.double(), batch).sum()) / len(batch.label)

    def mean_regression(self, prediction: Tensor, batch: Batch) -> float | None:
        """Return the mean squared error over a whole split, in float64; None without targets."""
        valid = int(self.valid(batch.roles["target"]).sum())
        on_host = replace(self, dtype=torch.float64)
        return float(on_host.regression_sum(prediction, batch)) / valid if valid else None


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
