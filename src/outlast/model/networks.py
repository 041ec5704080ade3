"""The built-in networks. Each takes its inputs as float32 (batch, ...) and gives logits.

Without batch normalization by default: with it, results depend on how a batch is cut over ranks.
Every one ends in a linear layer called ``head``; its input is the representation.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Fully connected network over the concatenated, flattened inputs."""

    def __init__(
        self,
        input_shapes: Sequence[Sequence[int]],
        num_outputs: int,
        hidden: Sequence[int] = (64, 64),
        dropout: float = 0.0,
    ) -> None:
        """Build it.

        Args:
            input_shapes: Row shape of each input.
            num_outputs: Logits per row.
            hidden: Width of each hidden layer.
            dropout: Probability of dropping a hidden value while training.
        """
        super().__init__()
        widths = [sum(math.prod(shape) for shape in input_shapes), *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return logits (batch, num_outputs)."""
        # not flatten(1), which an input of one value per row has not
        rows = torch.cat([tensor.reshape(len(tensor), -1) for tensor in inputs], dim=1)
        return self.head(self.body(rows))  # type: ignore[no-any-return]


class _CNN(nn.Module):
    """Convolution, ReLU, max pooling per entry of ``channels``; mean over positions; linear."""

    dimensions: int
    convolution: type[nn.Module]
    batch_norm: type[nn.Module]
    max_pool: type[nn.Module]

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        channels: Sequence[int] = (32, 64),
        kernel_size: int = 3,
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """Build it.

        Args:
            input_shape: Row shape: (channels, positions...); a row without a channel axis gets one.
            num_outputs: Logits per row.
            channels: Output channels of each block. A block halves the positions while it can.
            kernel_size: Odd width of the convolutions.
            batch_norm: Normalize each block over the batch (of one rank on a CPU).
            dropout: Probability of dropping a value of the representation while training.
        """
        super().__init__()
        shape = tuple(input_shape)
        self.adds_channel = len(shape) == self.dimensions
        if self.adds_channel:
            shape = (1, *shape)
        if len(shape) != self.dimensions + 1:
            raise ValueError(
                f"rows of shape {tuple(input_shape)} do not fit a {self.dimensions}-d convolution:"
                f" (channels, {', '.join(['positions'] * self.dimensions)}) is needed"
            )
        before, positions = shape[0], min(shape[1:])
        layers: list[nn.Module] = []
        for after in channels:
            layers.append(self.convolution(before, after, kernel_size, padding="same"))
            layers += [self.batch_norm(after)] if batch_norm else []
            layers.append(nn.ReLU())
            if positions >= 4:
                layers.append(self.max_pool(2))
                positions //= 2
            before = after
        self.body = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(before, num_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits (batch, num_outputs) for rows (batch, channels, positions...)."""
        if self.adds_channel:
            rows = rows.unsqueeze(1)
        representation = self.body(rows).flatten(2).mean(dim=2)
        return self.head(self.dropout(representation))  # type: ignore[no-any-return]


class CNN1d(_CNN):
    """Convolutional network for signals: rows (channels, time) or (time,)."""

    dimensions, convolution, batch_norm, max_pool = 1, nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d


class CNN2d(_CNN):
    """Convolutional network for images: rows (channels, height, width) or (height, width)."""

    dimensions, convolution, batch_norm, max_pool = 2, nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d


BUILT_IN: dict[str, type[nn.Module]] = {"mlp": MLP, "cnn1d": CNN1d, "cnn2d": CNN2d}
