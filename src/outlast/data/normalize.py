"""Scaling of the inputs: learned from the training rows, applied to each batch on its device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from outlast.data.arrays import row_chunks
from outlast.errors import DataError

# a spread below this share of the mean is rounding of float32, not signal
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Normalization:
    """How a batch is scaled.

    Attributes:
        kind: `none`, `standard` or `per_sample`, as `data.normalize` defines them.
        names: The inputs, in the order of the network's ``forward``.
        mean: For `standard`, one float32 tensor per input that broadcasts over its rows; else ().
        std: The same, population standard deviation; 1 where a feature is constant.
    """

    kind: str
    names: tuple[str, ...]
    mean: tuple[torch.Tensor, ...] = ()
    std: tuple[torch.Tensor, ...] = ()

    @classmethod
    def fit(cls, kind: str, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> "Normalization":
        """Learn what ``kind`` needs from ``rows`` (n,) of the inputs, and from no other row.

        `standard`: mean and standard deviation in float64 of the values as float32, one for each
        feature of (N, F), each channel (axis 1) of (N, C, ...), one in all for (N,).

        Raises:
            DataError: No rows, or `per_sample` for an input with one value per row.
        """
        names = tuple(inputs)
        if kind == "per_sample":
            _check_per_sample(inputs)
        if kind != "standard":
            return cls(kind, names)
        if len(rows) == 0:
            raise DataError("data.normalize: standard needs training rows, and there are none")
        moments = [_moments(array, np.sort(rows)) for array in inputs.values()]
        return cls(
            kind, names, tuple(mean for mean, _ in moments), tuple(std for _, std in moments)
        )

    def moments(self) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Return name, mean and standard deviation of each input; empty but for `standard`."""
        pairs = zip(self.mean, self.std, strict=True)
        return [
            (name, mean.numpy(), std.numpy())
            for name, (mean, std) in zip(self.names, pairs, strict=False)
        ]

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Scale a batch, float32 (n, ...) each in the order of ``names``; changes it in place."""
        if self.kind == "standard":
            for batch, mean, std in zip(inputs, self.mean, self.std, strict=True):
                batch.sub_(mean).div_(std)
        elif self.kind == "per_sample":
            for batch in inputs:
                _scale_rows(batch)
        return inputs

    def to(self, device: torch.device | str) -> "Normalization":
        """Return the same on ``device``."""
        return replace(
            self,
            mean=tuple(tensor.to(device) for tensor in self.mean),
            std=tuple(tensor.to(device) for tensor in self.std),
        )

    def state(self) -> dict[str, Any]:
        """Return plain values and CPU tensors, which load with ``weights_only=True``."""
        return {
            "kind": self.kind,
            "names": list(self.names),
            "mean": [tensor.cpu() for tensor in self.mean],
            "std": [tensor.cpu() for tensor in self.std],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Normalization":
        """Return what ``state()`` described."""
        return cls(state["kind"], tuple(state["names"]), tuple(state["mean"]), tuple(state["std"]))


def _check_per_sample(inputs: Mapping[str, np.ndarray]) -> None:
    for name, array in inputs.items():
        if array[:1].size <= 1:
            raise DataError(
                f"data.normalize: per_sample would make every row of {name!r} the same, since it"
                " has one value per row; use standard"
            )


def _moments(array: np.ndarray, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation over sorted ``rows``, shaped to broadcast over a batch.

    One pass; the chunks are merged by the formula of Chan, Golub and LeVeque (1983), which does
    not cancel when the mean is large. Sums of equal float32 values are exact in float64, so that
    a constant feature has a deviation of exactly 0.
    """
    axes = tuple(axis for axis in range(array.ndim) if axis != 1)
    count, mean, squares = 0, np.float64(0), np.float64(0)
    for part in row_chunks(array):
        chosen = rows[np.searchsorted(rows, part.start) : np.searchsorted(rows, part.stop)]
        if len(chosen) == 0:
            continue
        # C order: the order of a sum, and with it the last bit, must not depend on the file's
        chunk = np.ascontiguousarray(array[chosen], dtype=np.float32).astype(np.float64)
        size = chunk.size // (chunk.shape[1] if chunk.ndim > 1 else 1)
        center = chunk.mean(axis=axes, keepdims=True)
        shift, total = center - mean, count + size
        squares = squares + np.square(chunk - center).sum(axis=axes, keepdims=True)
        squares = squares + shift**2 * (count * size / total)
        mean, count = mean + shift * (size / total), total
    std = np.asarray(np.sqrt(squares / count), dtype=np.float32)
    std[std == 0] = 1
    return torch.from_numpy(mean.astype(np.float32))[0], torch.from_numpy(std)[0]


def _scale_rows(batch: torch.Tensor) -> None:
    """Scale each row by its own mean and population standard deviation, in place."""
    axes = tuple(range(1, batch.ndim))
    mean = batch.mean(dim=axes, keepdim=True)
    batch.sub_(mean)
    std = batch.square().mean(dim=axes, keepdim=True).sqrt_()
    batch.div_(torch.where(std > ROUNDING * mean.abs(), std, 1.0))
