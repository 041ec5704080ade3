"""Whether all numbers of a model are finite, at the price of reading them once."""

from collections.abc import Sequence

import torch


def all_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether there is neither NaN nor infinity in ``tensors``; they share a device."""
    # neither ever leaves a sum again, and adding up needs no memory
    if bool(torch.stack([tensor.detach().sum() for tensor in tensors]).isfinite().all()):
        return True
    # finite numbers can have an infinite sum
    return bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all())
