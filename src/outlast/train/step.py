"""One optimizer step on one global batch: parts, ranks, precision, clipping."""

import torch

from outlast.data.augment import Augment
from outlast.data.sampling import Rows, cut
from outlast.faults import reach
from outlast.model.heads import Outputs
from outlast.train.clipping import Clipping
from outlast.train.gradients import FlatGradients
from outlast.train.meter import Meter
from outlast.train.setup import Setup
from outlast.train.state import Position


class Step:
    """Takes steps. What it changes is in network, optimizer, clipping and scaler."""

    def __init__(self, setup: Setup, optimizer: torch.optim.Optimizer) -> None:
        """Put the parts together."""
        section, device = setup.section, setup.distributed.device
        self._setup, self._optimizer = setup, optimizer
        self._objective = setup.objective.to(device)
        self._augment = Augment(section.augment, section.seed)
        self.gradients = FlatGradients(setup.network, setup.distributed)
        self.clipping = Clipping(section, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=section.precision == "float16")

    def take(self, rows: Rows, position: Position, strength: float, meter: Meter) -> None:
        """Train on the rows of one global batch.

        Args:
            rows: Of all ranks.
            position: Epoch and step.
            strength: Of the adversary in this epoch.
            meter: Gets the sums of this rank.
        """
        setup, ranks = self._setup, self._setup.distributed
        parts = setup.section.grad_accum_split
        normalisers = self._objective.normalisers(setup.data, rows)
        share = cut(rows, ranks.world_size, ranks.rank)
        self.gradients.zero()
        for index in range(parts):
            part = cut(share, parts, index)
            # an empty share adds nothing; SyncBatchNorm (CUDA) waits for every rank all the same
            if len(part) == 0 and ranks.device.type == "cpu":
                continue
            batch = setup.reader.read(part)
            inputs = self._augment(batch.inputs, part, position.epoch)
            with setup.autocast():
                outputs: Outputs = setup.network(*inputs, strength=strength)
            loss, sums = self._objective.part(outputs, batch, normalisers)
            reach("backward")
            self.scaler.scale(loss).backward()
            meter.add(position.step, sums)
        reach("reduce")
        self.gradients.reduce()
        self.scaler.unscale_(self._optimizer)
        if not self.scaler.is_enabled():  # which leaves out the steps that overflow
            meter.watch(position.step, self.gradients.probe())
        self.clipping.clip(self.gradients.flats)
        reach("step")
        self.scaler.step(self._optimizer)
        self.scaler.update()
