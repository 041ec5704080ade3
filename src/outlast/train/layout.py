"""How weights lie in memory: gradients and moments must lie there alike.

Fused optimizers go through raw memory, from the first number of a weight to its last.
"""

from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import ModelError


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


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state dict of an optimizer, its moments in the layout that the weights have now."""
    optimizer.load_state_dict(state)
    for weight, values in optimizer.state.items():
        strides = strides_of(weight)
        for name, value in values.items():
            if not isinstance(value, Tensor) or value.shape != weight.shape:
                continue
            if value.stride() != strides:
                values[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
