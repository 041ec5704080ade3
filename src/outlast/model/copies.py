"""Copies of what a state holds: deep, of the same types, on the CPU."""

import copy
import itertools
from typing import Any

import torch
from torch import Tensor

from outlast.errors import CheckpointError


def copied(value: Any, before: Any = None) -> Any:
    """Return a copy on the CPU that shares nothing with ``value``.

    What is one thing under two names, be it a tensor or an object, is one thing in the copy.

    Args:
        value: Tensors and plain values, nested in any way.
        before: A copy that nobody needs any more. Its tensors are written over where they fit:
            memory that is new to the process costs as much as the copying itself.

    Raises:
        CheckpointError: It holds something that cannot be copied.
    """
    return _Copying().copy(value, before)


def identity(tensor: Tensor) -> Any:
    """Return what is equal for two tensors of one place, seen alike, and for no others."""
    if not is_plain(tensor) or tensor.numel() == 0:
        return id(tensor)
    bits = tensor.is_conj(), tensor.is_neg()
    form = tensor.dtype, tensor.shape, tensor.stride(), *bits
    return tensor.device, tensor.data_ptr(), form


def is_plain(tensor: Tensor) -> bool:
    """Tell whether it is no more than numbers in memory."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)


class _Copying:
    """One copy; knows what it has copied already."""

    def __init__(self) -> None:
        self._done: dict[Any, Any] = {}  # the memo of deepcopy, too
        self._used: set[int] = set()

    def copy(self, value: Any, before: Any) -> Any:
        """Copy ``value`` into what is at the same place of ``before``, if that is such a thing."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        key = identity(value) if isinstance(value, Tensor) else id(value)
        if key not in self._done:
            self._done[key] = self._new(value, before)
        return self._done[key]

    def _new(self, value: Any, before: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value.detach(), before)
        if isinstance(value, dict):
            # with its type, its order and its attributes, as the _metadata of a state dict
            result = self._done[id(value)] = copy.copy(value)
            old = before if isinstance(before, dict) else {}
            for key, item in value.items():
                result[key] = self.copy(item, old.get(key))
            return result
        if type(value) in (list, tuple):
            places = itertools.chain(
                before if isinstance(before, list | tuple) else (), itertools.repeat(None)
            )
            return type(value)(map(self.copy, value, places))
        try:
            return copy.deepcopy(value, self._done)
        except Exception as error:  # a lock, an open file
            raise CheckpointError(
                "model.network: its state holds something else than tensors and plain values"
                f" ({error}); correct its get_extra_state()"
            ) from error

    def _tensor(self, value: Tensor, before: Any) -> Tensor:
        if not _fits(before, value) or id(before) in self._used:
            return value.to("cpu", copy=True)
        self._used.add(id(before))
        result: Tensor = before.copy_(value)
        return result


def _fits(before: Any, value: Tensor) -> bool:
    """Tell whether both are plain tensors of one kind, laid out alike."""
    return (
        type(before) is type(value) is Tensor
        and is_plain(before)
        and is_plain(value)
        and (before.dtype, before.shape, before.stride())
        == (value.dtype, value.shape, value.stride())
    )
