"""Validation: each row once, on one rank; scored once, for the whole split."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outlast.objective.scores import Scores, score
from outlast.train.setup import Setup
from outlast.train.validated import Validated

log = logging.getLogger("outlast")


@dataclass(frozen=True)
class Validation:
    """Metrics of the validation split. None: undefined. ``points``: as in ``Scores``."""

    loss: float | None
    accuracy: float | None
    auc: float | None
    f1: float | None
    points: Mapping[str, float | None] = field(default_factory=dict)
    regression: float | None = None

    @classmethod
    def of(cls, loss: float, scores: Scores, regression: float | None = None) -> "Validation":
        """Put loss and scores together; a loss that is no number is undefined."""
        defined = loss if math.isfinite(loss) else None
        return cls(defined, scores.accuracy, scores.auc, scores.f1, scores.points, regression)

    def by_name(self, metric: str) -> float | None:
        """Return the metric that the config calls ``val_loss``, ``tpr_at_fpr:0.01``, ..."""
        return {
            "val_loss": self.loss,
            "val_acc": self.accuracy,
            "val_auc": self.auc,
            "val_f1": self.f1,
            **self.points,
        }[metric]

    def undefined(self) -> list[str]:
        """Name the metrics that are undefined."""
        names = ("val_loss", "val_acc", "val_auc", "val_f1", *self.points)
        return [name for name in names if self.by_name(name) is None]


class Validator:
    """Scores the validation split, on every rank alike."""

    def __init__(self, setup: Setup, metric: str) -> None:
        """Put the parts together; ``metric`` is the selection metric."""
        self._setup, self._metric = setup, metric
        self._has_warned = False

    def validate(
        self,
        validated: Validated,
        seed_batch: Callable[[int], None],
        at_boundary: Callable[[], None],
    ) -> Validation:
        """Return the metrics of the whole split, each row predicted once. Collective.

        Args:
            validated: What is done already, by an attempt that was stopped within.
            seed_batch: Called before each batch with its number: a network may draw random
                numbers here too, and a resumed run must draw the same.
            at_boundary: Called after each batch, equally often on every rank.
        """
        ranks = self._setup.distributed
        self._predict(validated, seed_batch, at_boundary)
        found = validated.gather()
        result = ranks.broadcast(self._score(found) if ranks.is_main else None)
        assert result is not None, "rank 0 has scored"
        if ranks.is_main:
            self._warn_of_undefined(result)
        return result

    # not inference_mode: tensors that a network or a copy keeps from here must do in training
    @torch.no_grad()
    def _predict(
        self,
        validated: Validated,
        seed_batch: Callable[[int], None],
        at_boundary: Callable[[], None],
    ) -> None:
        """Predict the rows that are left."""
        if not validated.steps:  # else an earlier attempt has, and the numbers are those after it
            seed_batch(0)
            self._setup.network.eval()
        while validated.steps < validated.num_steps:
            rows, outputs = validated.next_rows(), None
            if len(rows):
                seed_batch(validated.steps)
                outputs = self._forward(self._setup.reader.read(rows).inputs)
            validated.add(outputs)
            at_boundary()

    def _forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return logits, and behind them what the regression predicts, float32 (rows, outputs)."""
        with self._setup.autocast():
            outputs = self._setup.network(*inputs)
        parts = [outputs.logits.float().reshape(len(inputs[0]), -1)]
        if outputs.target is not None:
            parts.append(outputs.target.float().reshape(-1, 1))
        return torch.cat(parts, dim=1)

    def _score(self, found: Tensor) -> Validation:
        setup = self._setup
        batch = setup.reader.targets(setup.data.splits["validation"])
        logits = found[:, : setup.objective.num_outputs]
        regression = None
        if setup.network.regression is not None:
            regression = setup.objective.mean_regression(found[:, -1], batch)
        loss = setup.objective.mean_loss(logits, batch)
        return Validation.of(loss, score(logits, batch.label, self._metric), regression)

    def _warn_of_undefined(self, result: Validation) -> None:
        """Say once per attempt why a metric is shown as 0."""
        if (names := result.undefined()) and not self._has_warned:
            self._has_warned = True
            is_broken = result.loss is None
            log.warning(
                "%s undefined (shown as 0, null in history.json): %s",
                ", ".join(names),
                "the model gives NaN or infinity" if is_broken else "the split lacks a class",
            )
