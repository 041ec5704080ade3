"""What a network holds beside its parameters, as it was when a validation began."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import ModelError
from outlast.model.copies import copied, is_plain, overlaps
from outlast.model.weights import load_weights, transient_buffers
from outlast.train.apart import parts_of


class Held:
    """Copies of buffers and extra state, for the states that are saved within a validation.

    Where it begins anew, what it has counted would be counted twice. Parameters may be too large
    to be held, and no validation changes them.
    """

    def __init__(self, model: nn.Module) -> None:
        """Copy what ``model`` holds now."""
        self._model = model
        self._versions = _versions(model)
        rest, transient = _rest(model), transient_buffers(model)
        self.rest, self.buffers = copied((rest, transient))
        # a buffer in the memory of a parameter stays there
        self._shared = _shared(model, rest, transient)
        for copies, originals in ((self.rest, rest), (self.buffers, transient)):
            for name in originals:
                if self._shared.get(name, set()) & self._versions.keys():
                    copies[name] = originals[name]

    def put_into(self, weights: dict[str, Any]) -> None:
        """Replace what is no parameter in a state dict of the network."""
        for name in weights.keys() - self._versions.keys():
            del weights[name]  # what validation has added
        weights.update(self.rest)

    def changes(self) -> dict[str, Any] | None:
        """Return what validation has made of it: the live parts; None: it has moved a parameter.

        Empty where all is as it was, to the bit. By the numbers: what is written through ``.data``
        or numpy has no other trace.
        """
        if _versions(self._model) != self._versions:
            return None
        rest, transient = _rest(self._model), transient_buffers(self._model)
        shared = _shared(self._model, rest, transient)
        is_same = _is_same([rest, transient], [self.rest, self.buffers])
        if is_same and shared == self._shared:
            return {}
        # what lies in a parameter has not moved either
        bound = {name for name in shared if shared[name] & self._versions.keys()}
        return {
            "rest": {name: rest[name] for name in rest.keys() - bound},
            "buffers": {name: transient[name] for name in transient.keys() - bound},
        }

    def load_changes(self, changes: dict[str, Any]) -> None:
        """Bring the network to where an earlier attempt was stopped in this validation."""
        weights = self._model.state_dict()
        weights.update(changes["rest"])
        load_weights(self._model, weights, changes["buffers"])
        self._versions = _versions(self._model)  # each parameter was loaded with itself

    def refuse_moved(self) -> None:
        """Refuse a validation that moves parameters.

        Raises:
            ModelError: It has changed one, which may be too large to be held.
        """
        for name, version in _versions(self._model).items():
            if version != self._versions.get(name, 0):
                raise ModelError(
                    f"model.network: validation changes its parameter {name}, and an attempt that"
                    " is stopped within would change it twice; make it a buffer"
                )


def named_parameters(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    """Return the parameters under all their names."""
    return model.named_parameters(remove_duplicate=False)


def _versions(model: nn.Module) -> dict[str, int]:
    return {name: parameter._version for name, parameter in named_parameters(model)}


def _rest(model: nn.Module) -> dict[str, Any]:
    parameters = {name for name, _ in named_parameters(model)}
    return {name: value for name, value in model.state_dict().items() if name not in parameters}


def _shared(
    model: nn.Module, rest: dict[str, Any], transient: dict[str, Tensor]
) -> dict[str, set[str]]:
    tensors = {name: value for name, value in rest.items() if isinstance(value, Tensor)}
    return overlaps({**dict(named_parameters(model)), **tensors, **transient})


def _is_same(one: Any, other: Any) -> bool:
    """Compare tensors bit by bit, plain values by what is shown of them; NaN is NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
            return False
        if is_plain(one) and is_plain(other):
            return torch.equal(_bytes(one), _bytes(other))
        parts = parts_of(one)  # of a sparse one; of another kind nothing is known
        return bool(parts) and _is_same(parts, parts_of(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def _bytes(tensor: Tensor) -> Tensor:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)
