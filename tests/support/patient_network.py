"""A user's own network for the kill tests: dropout, and a wait in each forward pass.

The wait (OUTLAST_TEST_WAIT_S: seconds) makes an epoch long enough to be hit anywhere. It touches no
random number. OUTLAST_TEST_HOG_MB: megabytes taken while it trains. Both may name a file that says
how many at this moment. OUTLAST_TEST_MARKS names a folder where the network leaves word of what it
is doing.
"""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

HOG: list[bytes] = []


def now(variable: str, default: str) -> float:
    """Return the number that a variable of the environment, or the file that it names, says."""
    said = os.environ.get(variable, default)
    return float(Path(said).read_text() if Path(said).is_file() else said)


class PatientNet(nn.Module):
    """Two linear layers with dropout and batch normalization: both have something to lose.

    ``plain``: without them, so that the numbers do not depend on how a batch is cut.
    """

    def __init__(self, num_inputs: int, num_outputs: int, width: int = 24, plain: bool = False):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(num_inputs, width),
            nn.Identity() if plain else nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Identity() if plain else nn.Dropout(0.3),
        )
        self.head = nn.Linear(width, num_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        marks = os.environ.get("OUTLAST_TEST_MARKS")
        if marks and self.training and torch.is_grad_enabled():
            with Path(marks, f"training-{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(f"{time.time()}\n")  # a line for each part of a batch
        if marks and not torch.is_grad_enabled() and len(rows) > 2:  # no trial at the start
            Path(marks, "validation").touch()
        is_step = self.training and torch.is_grad_enabled()
        if is_step and not HOG and (megabytes := now("OUTLAST_TEST_HOG_MB", "0")):
            HOG.append(b"x" * int(megabytes * 1e6))
        time.sleep(now("OUTLAST_TEST_WAIT_S", "0.02"))
        return self.head(self.body(rows))
