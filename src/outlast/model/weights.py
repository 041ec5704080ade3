"""Weights back into a network that was built anew, with the buffers that it made on the way."""

from typing import Any

from torch import Tensor, nn


def load_weights(network: nn.Module, weights: dict[str, Any], *, persistent: bool = True) -> None:
    """Load a state dict strictly; but take buffers as they have become.

    A network may grow a buffer, give one to a name that was None, or register one in its
    ``forward``. torch would refuse all three.

    Args:
        network: As its constructor makes it; its device stays.
        weights: Its state dict, or buffers alone.
        persistent: False: ``weights`` are buffers that are no part of the state dict.

    Raises:
        RuntimeError: A parameter is missing or surplus, or has another shape.
    """
    device = next((tensor.device for tensor in network.parameters()), None)
    for name, value in weights.items():
        path, _, leaf = name.rpartition(".")
        module = _submodule(network, path)
        if module is None or not isinstance(value, Tensor):
            continue
        here = module._buffers.get(leaf)
        if here is not None and here.shape == value.shape and persistent:
            continue
        if leaf in module._buffers or not hasattr(module, leaf):
            place = device if here is None else here.device
            module.register_buffer(leaf, value.clone().to(place), persistent=persistent)
    if persistent:
        network.load_state_dict(weights, strict=True)


def _submodule(network: nn.Module, path: str) -> nn.Module | None:
    try:
        return network.get_submodule(path)
    except AttributeError:
        return None
