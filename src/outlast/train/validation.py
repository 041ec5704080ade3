"""Validation: each row once, on one rank; scored once, for the whole split."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from outlast.data.batches import BatchReader
from outlast.data.sampling import Rows, batch_of, cut, num_steps
from outlast.data.store import DataSet
from outlast.distributed import Distributed
from outlast.model.heads import StudyNetwork
from outlast.objective.objective import Objective
from outlast.objective.scores import Scores, score

log = logging.getLogger("outlast")


@dataclass(frozen=True)
class Validation:
    """Metrics of the validation split. None: undefined. ``points``: as in ``Scores``."""

    loss: float | None
    accuracy: float
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
        names = ("val_loss", "val_auc", "val_f1", *self.points)
        return [name for name in names if self.by_name(name) is None]


@torch.inference_mode()
def predict_split(
    model: nn.Module,
    forward: Callable[[Sequence[Tensor]], Tensor],
    reader: BatchReader,
    rows: Rows,
    batch_size: int,
    distributed: Distributed,
    seed_batch: Callable[[int], None],
    at_boundary: Callable[[], None],
) -> Tensor:
    """Return float32 outputs of ``rows``, shape (rows, outputs), on the host of every rank.

    Unpadded shards: their sizes differ by one row at most, and with few rows some are empty.

    Args:
        model: Put into evaluation mode.
        forward: Inputs of a batch -> what is wanted of it, (rows, outputs).
        reader: Of the data set.
        rows: The split.
        batch_size: Rows per forward pass of one rank.
        distributed: The ranks.
        seed_batch: Called before each batch with its number: a network may draw random numbers
            here too, and a resumed run must draw the same.
        at_boundary: Called after each batch, equally often on every rank.
    """
    shares = [cut(rows, distributed.world_size, rank) for rank in range(distributed.world_size)]
    model.eval()
    logits: list[Tensor] = []
    for step in range(num_steps(max(map(len, shares)), batch_size)):
        part = batch_of(shares[distributed.rank], step, batch_size)
        if len(part):
            seed_batch(step)
            logits.append(forward(reader.read(part).inputs).float().reshape(len(part), -1))
        at_boundary()
    # a rank without a row has not seen how wide they are; with few rows, that is rank 0
    width = max(distributed.gather(logits[0].shape[1] if logits else 0))
    own = torch.cat(logits) if logits else torch.empty(0, width)
    return distributed.gather_rows(own, [len(share) for share in shares])


class Validator:
    """Scores the validation split, on every rank alike."""

    def __init__(
        self,
        study: StudyNetwork,
        data: DataSet,
        reader: BatchReader,
        objective: Objective,
        autocast: Callable[[], AbstractContextManager[object]],
        metric: str,
        batch_size: int,
        distributed: Distributed,
    ) -> None:
        """Put the parts together; ``metric`` is the selection metric."""
        self._study, self._data, self._reader = study, data, reader
        self._objective, self._autocast, self._metric = objective, autocast, metric
        self._batch_size, self._distributed = batch_size, distributed
        self._has_warned = False

    def validate(
        self, seed_batch: Callable[[int], None], at_boundary: Callable[[], None]
    ) -> Validation:
        """Return the metrics of the whole split; see :func:`predict_split`. Collective."""
        rows, ranks = self._data.splits["validation"], self._distributed
        found = predict_split(
            self._study,
            self._forward,
            self._reader,
            rows,
            self._batch_size,
            ranks,
            seed_batch,
            at_boundary,
        )
        result = ranks.broadcast(self._score(found, rows) if ranks.is_main else None)
        assert result is not None, "rank 0 has scored"
        if ranks.is_main:
            self._warn_of_undefined(result)
        return result

    def _forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return logits, and behind them what the regression predicts, (rows, outputs)."""
        with self._autocast():
            outputs = self._study(*inputs)
        parts = [outputs.logits.float().reshape(len(inputs[0]), -1)]
        if outputs.target is not None:
            parts.append(outputs.target.float().reshape(-1, 1))
        return torch.cat(parts, dim=1)

    def _score(self, found: Tensor, rows: Rows) -> Validation:
        batch = self._reader.targets(rows)
        logits = found[:, : self._objective.num_outputs]
        regression = None
        if self._study.regression is not None:
            regression = self._objective.mean_regression(found[:, -1], batch)
        loss = self._objective.mean_loss(logits, batch)
        return Validation.of(loss, score(logits, batch.label, self._metric), regression)

    def _warn_of_undefined(self, result: Validation) -> None:
        """Say once per attempt why a metric is shown as 0."""
        if (names := result.undefined()) and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s undefined (shown as 0, null in history.json): the validation split lacks a"
                " class, or the model gives no finite numbers",
                ", ".join(names),
            )
