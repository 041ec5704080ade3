"""In which numbers a network computes: the same in training, validation and evaluation."""

from contextlib import AbstractContextManager, nullcontext

import torch

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a network computes under ``training.precision``."""
    if precision not in PRECISIONS:
        return nullcontext()
    return torch.autocast(device.type, PRECISIONS[precision])
