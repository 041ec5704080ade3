"""What training and validation work with: the parts that no step changes."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.distributed import Distributed
from outlast.model.heads import StudyNetwork
from outlast.model.precision import autocast
from outlast.objective.objective import Objective
from outlast.sections import TrainingSection


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
        return autocast(self.section.precision, self.distributed.device)
