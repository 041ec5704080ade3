"""Weights back into a network that was built anew, with the buffers that it made on the way."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from outlast.model.copies import identity, is_plain, overlaps


def load_weights(
    network: nn.Module, weights: dict[str, Any], transient: dict[str, Tensor] | None = None
) -> None:
    """Load a state dict strictly; but take buffers as they have become.

    A network may grow a buffer, change its dtype, give one to a name that was None, or register
    one in its ``forward``. torch would refuse or convert them. One tensor under two names stays
    one, two stay two. What fits is written in place: others may hold the tensor as well. Unless
    that would write into what shares its memory here and no longer does in the state.

    Args:
        network: As its constructor makes it; its device stays.
        weights: Its state dict. Nothing of it becomes part of the network.
        transient: Buffers that are no part of the state dict.

    Raises:
        RuntimeError: A parameter is missing or surplus, or has another shape.
    """
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
    places = _Places(network, tensors | (transient or {}))
    for name, value in weights.items():
        if isinstance(value, Tensor) and not is_extra_state(name):
            places.give(name, value, persistent=True)
    given = [places.give(*item, persistent=False) for item in (transient or {}).items()]
    network.load_state_dict(_with_own_extra_state(weights), strict=True)
    with torch.no_grad():
        for buffer, value in zip(given, (transient or {}).values(), strict=True):
            if buffer is not None:
                buffer.copy_(value)


def transient_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that the state dict leaves out: no kill may change those either."""
    kept = model.state_dict().keys()
    buffers = model.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name not in kept}


class _Places:
    """Gives buffers the memory that they need, before they are loaded."""

    def __init__(self, network: nn.Module, values: dict[str, Tensor]) -> None:
        self._network = network
        self._device = next((tensor.device for tensor in network.parameters()), None)
        self._given: dict[Any, Tensor] = {}
        self._taken: set[int] = set()
        parameters = dict(network.named_parameters(remove_duplicate=False))
        buffers = dict(network.named_buffers(remove_duplicate=False))
        here, saved = overlaps(parameters | buffers), overlaps(values)
        self._apart = {name for name in saved if here.get(name, set()) - saved[name]}
        for name in parameters.keys() & values.keys():
            if parameters[name].shape == values[name].shape:
                self._given[identity(values[name])] = parameters[name].detach()

    def give(self, name: str, value: Tensor, *, persistent: bool) -> Tensor | None:
        """Return the buffer of that name, made anew where ``value`` does not fit; None: is none."""
        path, _, leaf = name.rpartition(".")
        module = _submodule(self._network, path)
        if module is None or (leaf not in module._buffers and hasattr(module, leaf)):
            return None  # a parameter, or of another form: torch will tell
        here = module._buffers.get(leaf)
        buffer = self._given.get(identity(value))
        if buffer is not None and here is not None and identity(buffer) == identity(here):
            buffer = here
        is_free = id(here) not in self._taken and name not in self._apart
        if buffer is None and here is not None and is_free:
            buffer = here if _fits(here, value) else None
        if buffer is None:
            buffer = value.clone().to(self._device if here is None else here.device)
        if buffer is not here:
            module.register_buffer(leaf, buffer, persistent=persistent)
        self._given[identity(value)] = buffer
        self._taken.add(id(buffer))
        return buffer


def is_extra_state(name: str) -> bool:
    """Tell whether this part of a state dict is what a module's get_extra_state() gave."""
    return name.rpartition(".")[2] == "_extra_state"


def _fits(here: Tensor, value: Tensor) -> bool:
    """Tell whether ``value`` can be written into the memory of ``here``."""
    strides = zip(here.shape, here.stride(), strict=True) if is_plain(here) else ()
    is_expanded = any(size > 1 and stride == 0 for size, stride in strides)
    form = here.dtype, here.shape, is_plain(here)
    return form == (value.dtype, value.shape, is_plain(value)) and not is_expanded


def _with_own_extra_state(weights: dict[str, Any]) -> dict[str, Any]:
    """Return them with copies of what set_extra_state() will get, to change as it likes."""
    ours = copy.copy(weights)  # its _metadata, too
    extra = {name: ours[name] for name in ours if is_extra_state(name)}
    ours.update(copy.deepcopy(extra))
    return ours


def _submodule(network: nn.Module, path: str) -> nn.Module | None:
    try:
        return network.get_submodule(path)
    except AttributeError:
        return None
