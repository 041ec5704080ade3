"""The order of weights, and how each lies in memory: the same for gradients and moments.

Optimizers know weights by their position, and the fused ones go through raw memory, from the
first number of a weight to its last.
"""

from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import ModelError
from outlast.files import digest_values
from outlast.model.copies import is_plain


def strides_of(weight: Tensor) -> tuple[int, ...]:
    """Return the strides of a gradient: those of its weight, if that lies in memory in one piece.

    Those of a weight that does not (:func:`refuse_scattered`) are such that its gradient does.
    """
    return torch.empty_like(weight, device="meta").stride()


def refuse_scattered(network: nn.Module) -> None:
    """Refuse weights that share memory or have gaps, which no fused optimizer can train.

    Raises:
        ModelError: It has one.
    """
    for name, weight in network.named_parameters():
        if weight.requires_grad and weight.stride() != strides_of(weight):
            raise ModelError(
                f"model.network: its parameter {name} does not lie in memory in one piece (it is"
                " an expanded or sliced tensor); make it of a copy: nn.Parameter(values.clone())"
            )


def refuse_unsaved(network: nn.Module) -> None:
    """Refuse a network whose state dict leaves out a parameter that is trained.

    Raises:
        ModelError: Neither a state nor model_best.pt would hold it.
    """
    state = network.state_dict()
    held = [value for value in state.values() if isinstance(value, Tensor) and is_plain(value)]
    places = {value.data_ptr() for value in held}  # a hook may give it another name
    for name, weight in network.named_parameters():
        is_held = name in state or (is_plain(weight) and weight.data_ptr() in places)
        if weight.requires_grad and not is_held:
            raise ModelError(
                f"model.network: its parameter {name} is trained, and its state_dict() leaves it"
                " out, so that neither a resume nor model_best.pt would have it; keep it there, or"
                " freeze it (requires_grad_(False))"
            )


def form_of(model: nn.Module) -> str:
    """Return a digest of what must be the same on each rank: parameters and buffers, in order."""
    weights = [
        (name, str(weight.dtype), list(weight.shape), list(weight.stride()), weight.requires_grad)
        for name, weight in model.named_parameters()
    ]
    return digest_values([weights, [name for name, _ in model.named_buffers()]])


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state dict of an optimizer, whose moments go by position.

    They take on the layout that the weights have now, and the kernel is chosen anew: the device
    may be another one.

    Raises:
        ValueError: It is of other weights, or of the same ones in another order.
    """
    groups = []
    for before, now in zip(state["param_groups"], optimizer.param_groups, strict=True):
        old, new = before.get("param_names"), now.get("param_names")
        if old is not None and new is not None and old != new:
            first = next(pair for pair in zip_longest(old, new) if pair[0] != pair[1])
            raise ValueError(f"its parameters come in another order, {first[1]} for {first[0]}")
        groups.append(before | {"fused": now.get("fused")})
    optimizer.load_state_dict(state | {"param_groups": groups})
    for weight, values in optimizer.state.items():
        strides = strides_of(weight)
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.shape != weight.shape:
                continue
            if value.stride() != strides:
                values[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
