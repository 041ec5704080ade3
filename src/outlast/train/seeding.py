"""Randomness without a state: every step starts from its own seed."""

import random

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
