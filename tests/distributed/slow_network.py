"""A user's own network, slow enough to be hit; rank TROUBLED_RANK cannot build it."""

import atexit
import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import time

import torch
from torch import Tensor, nn


class SlowNet(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int, wait_s: float = 0.02):
        super().__init__()
        if os.environ["RANK"] == os.environ.get("TROUBLED_RANK"):
            raise ValueError("this rank cannot")
        self.wait_s = wait_s
        self.head = nn.Linear(num_inputs, num_outputs)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            time.sleep(self.wait_s)
        return self.head(torch.flatten(rows, 1))


class Unlike(SlowNet):
    """Adds its layers in another order on each rank, as the order of a set would be."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        for name in "ab" if os.environ["RANK"] == "0" else "ba":
            self.add_module(name, nn.Linear(num_outputs, num_outputs))

    def forward(self, rows: Tensor) -> Tensor:
        return self.b(self.a(super().forward(rows)))


class Moved(SlowNet):
    """Moves a frozen parameter with the rows that it sees."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        self.centre = nn.Parameter(torch.zeros(num_outputs), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        logits = super().forward(rows)
        if self.training:
            self.centre.data.lerp_(logits.detach().mean(0), 0.1)
        return logits - self.centre


class MovedToo(Moved):
    """The same with a parameter that is trained as well."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        self.centre.requires_grad_(True)


class ActNorm(SlowNet):
    """Sets a trained parameter from the first batch that it sees (Glow, Kingma 2018)."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        self.shift = nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, rows: Tensor) -> Tensor:
        logits = super().forward(rows)
        if self.training and not self.is_set:
            self.shift.data.copy_(-logits.detach().mean(0))
            self.is_set.fill_(True)
        return logits + self.shift


class Extra(SlowNet):
    """Keeps a mean over the rows that it sees as an extra state."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        self.mean = torch.zeros(num_outputs)

    def get_extra_state(self) -> Tensor:
        return self.mean

    def set_extra_state(self, state: Tensor) -> None:
        self.mean = state

    def forward(self, rows: Tensor) -> Tensor:
        logits = super().forward(rows)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean(0)
        return logits - self.mean


class Spoiled(SlowNet):
    """Its loss is no number from the sixth step on."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        self.steps = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.steps += self.training
        return super().forward(rows) * (float("nan") if self.steps > 5 else 1.0)


class Helped(SlowNet):
    """Has a program of its own do something in each step."""

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            subprocess.run(["sleep", "0.3"], check=True)
        return super().forward(rows)


class NeverDone(SlowNet):
    """Leaves a thread behind that ends never."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        threading.Thread(target=threading.Event().wait).start()


class Printing(SlowNet):
    """Prints as a library in C does."""

    def forward(self, rows: Tensor) -> Tensor:
        for stream in (0, 1, 2):
            with contextlib.suppress(OSError):
                os.write(stream, b"\n")
        return super().forward(rows)


class Forking(SlowNet):
    """Forks in each step; the child leaves by sys.exit, through all that is above it."""

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            if not (child := os.fork()):
                sys.exit(0)
            os.waitpid(child, 0)
        return super().forward(rows)


class Aborting(SlowNet):
    """As torch's threads do now and then, it aborts while the process is taken down."""

    def __init__(self, num_inputs: int, num_outputs: int):
        super().__init__(num_inputs, num_outputs)
        program = ctypes.CDLL(None)
        program["__cxa_atexit"](program.abort, None, None)  # C's own: after all of Python
        atexit.register(print, "what Python has to do at exit is done")
