"""From row numbers to tensors on the device: one gather per array and batch."""

import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from outlast.data.dataset import DataSet
from outlast.data.normalize import Normalization
from outlast.data.sampling import Rows

# rows in one pass where no gradient is needed
EVALUATED_AT_ONCE = 1024


@dataclass(frozen=True)
class Batch:
    """Rows of a data set, ready for the network.

    Attributes:
        inputs: One float32 tensor (rows, ...) per input, normalized, in the order of ``forward``.
        label: int64 class index, shape (rows,).
        roles: `noise_group`, `confound` (int64) and `target` (float64), as far as the data have
            them, shape (rows,) each.
    """

    inputs: list[Tensor]
    label: Tensor
    roles: dict[str, Tensor] = field(default_factory=dict)


def _over(array: np.ndarray) -> Tensor:
    """Return a tensor over the memory of an array, which may be a map that nobody may write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


class BatchReader:
    """Reads batches from the memory maps of a data set."""

    def __init__(
        self, data: DataSet, device: torch.device, normalization: Normalization | None = None
    ) -> None:
        """Look at the arrays; nothing is read yet.

        Args:
            data: Where the rows come from.
            device: Where they go.
            normalization: Another one than the data set's own (that of a model file).
        """
        # tensors over the memory maps, not copies: index_select touches only the wanted pages,
        # and what it allocates is aligned, so that kernels give the same bits in each attempt
        self._inputs = [_over(array) for array in data.inputs.values()]
        self._label = _over(data.label)
        self._roles = {
            role: _over(values)
            for role, values in data.roles.values.items()
            if role != "group"  # which only splits need
        }
        self._normalization = (normalization or data.normalization).to(device)
        self._device = device

    def read(self, rows: Rows) -> Batch:
        """Return the batch of ``rows``, in their order. Empty rows give empty tensors."""
        index = torch.from_numpy(np.array(rows))
        inputs = [self._move(array.index_select(0, index)) for array in self._inputs]
        inputs = self._normalization([tensor.to(torch.float32) for tensor in inputs])
        roles = {role: self._move(array[index]) for role, array in self._roles.items()}
        return Batch(inputs, self._move(self._label.index_select(0, index)), roles)

    def targets(self, rows: Rows) -> Batch:
        """Return label and roles of ``rows`` on the host, without inputs."""
        index = torch.from_numpy(np.array(rows))
        roles = {role: array[index] for role, array in self._roles.items()}
        return Batch([], self._label[index], roles)

    def _move(self, tensor: Tensor) -> Tensor:
        return to_device(tensor, self._device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on ``device``, without making the host wait."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
