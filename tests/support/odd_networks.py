"""Networks with numbers in places where no state dict looks; to be named in a config."""

import torch
from torch import Tensor, nn


class Fourier(nn.Module):
    """Random Fourier features in a plain attribute: only the seed can bring them back."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.features = torch.randn(num_inputs, 16)
        self.head = nn.Linear(32, num_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        angles = rows @ self.features
        return self.head(torch.cat([angles.sin(), angles.cos()], 1))


class FourierBuffer(Fourier):
    """The same in a buffer that the state dict leaves out."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        features = self.features
        del self.features
        self.register_buffer("features", features, persistent=False)


class Counting(nn.Module):
    """Its logits grow with the rows that it has been trained on, in a buffer of that kind."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(num_inputs, num_outputs)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.seen += len(rows)
        return self.head(rows) * (1 + self.seen / 100)


class Drawing(nn.Module):
    """Drops values in evaluation too."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(num_inputs, num_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(rows, 0.3, training=True))


class Recurrent(nn.Module):
    """For which torch has no half precision on a CPU."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 8, batch_first=True)
        self.head = nn.Linear(8, num_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.lstm(rows[:, :, None])[0][:, -1])
