"""What training and validation work with: the parts that no step changes."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.distributed import Distributed
from outlast.model.heads import StudyNetwork
from outlast.objective.objective import Objective
from outlast.sections import TrainingSection

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Setup:
    """The parts of a run on one rank.

    Attributes:
        network: With its heads, on the device.
        data: All splits.
        reader: Of the data, to the device.
        objective: Fits network and data.
        section: ``training`` of the config.
        distributed: The ranks.
    """

    network: StudyNetwork
    data: DataSet
    reader: BatchReader
    objective: Objective
    section: TrainingSection
    distributed: Distributed

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the network computes."""
        precision = PRECISIONS.get(self.section.precision)
        if precision is None:
            return nullcontext()
        return torch.autocast(self.distributed.device.type, precision)
