"""Randomness without a state: every step, and every construction, starts from its own seed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed Python, numpy, torch and the device of this rank.

    Called at each step: a network may draw from any of them. The default generators directly:
    ``torch.manual_seed`` asks every backend in turn and costs more than a small step.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def randomness_kept() -> Iterator[None]:
    """Leave the generators that :func:`seed_everything` seeds as they were before."""
    python, numpy, host = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(host)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
