"""One optimizer step on one global batch: parts, ranks, precision, clipping."""

from contextlib import AbstractContextManager, nullcontext

import torch

from outlast.data.augment import Augment
from outlast.data.batches import BatchReader
from outlast.data.sampling import Rows, cut
from outlast.data.store import DataSet
from outlast.distributed import Distributed
from outlast.model.heads import Outputs, StudyNetwork
from outlast.objective.objective import Objective
from outlast.sections import TrainingSection
from outlast.train.clipping import Clipping
from outlast.train.gradients import FlatGradients
from outlast.train.meter import Meter
from outlast.train.state import Position

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Step:
    """Takes steps. What it changes is in network, optimizer, clipping and scaler."""

    def __init__(
        self,
        network: StudyNetwork,
        data: DataSet,
        reader: BatchReader,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        section: TrainingSection,
        augment: Augment,
        distributed: Distributed,
    ) -> None:
        """Put the parts together."""
        device = distributed.device
        self._network, self._data, self._reader = network, data, reader
        self._objective = objective.to(device)
        self._augment = augment
        self._optimizer, self._section, self._distributed = optimizer, section, distributed
        self.gradients = FlatGradients(network, distributed)
        self.clipping = Clipping(section, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=section.precision == "float16")

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the network computes."""
        precision = PRECISIONS.get(self._section.precision)
        if precision is None:
            return nullcontext()
        return torch.autocast(self._distributed.device.type, precision)

    def take(self, rows: Rows, position: Position, strength: float, meter: Meter) -> None:
        """Train on the rows of one global batch.

        Args:
            rows: Of all ranks.
            position: Epoch and step.
            strength: Of the adversary in this epoch.
            meter: Gets the sums of this rank.
        """
        ranks, parts = self._distributed, self._section.grad_accum_split
        normalisers = self._objective.normalisers(self._data, rows)
        share = cut(rows, ranks.world_size, ranks.rank)
        self.gradients.zero()
        for index in range(parts):
            part = cut(share, parts, index)
            # an empty share adds nothing; SyncBatchNorm (CUDA) waits for every rank all the same
            if len(part) == 0 and ranks.device.type == "cpu":
                continue
            batch = self._reader.read(part)
            inputs = self._augment(batch.inputs, part, position.epoch)
            with self.autocast():
                outputs: Outputs = self._network(*inputs, strength=strength)
            loss, sums = self._objective.part(outputs, batch, normalisers)
            self.scaler.scale(loss).backward()
            meter.add(position.step, sums)
        self.gradients.reduce()
        self.scaler.unscale_(self._optimizer)
        self.clipping.clip(self.gradients.flats)
        self.scaler.step(self._optimizer)
        self.scaler.update()
