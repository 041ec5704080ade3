"""Copies of what a state holds: deep, of the same types, on the CPU."""

import copy
import itertools
from typing import Any

import torch
from torch import Tensor

from outlast.errors import ModelError


def copied(value: Any, before: Any = None) -> Any:
    """Return a copy on the CPU that shares nothing with ``value``.

    What is one thing under two names, be it a tensor or an object, is one thing in the copy;
    tensors that overlap in memory do so there.

    Args:
        value: Tensors and plain values, nested in any way.
        before: A copy that nobody needs any more. Its tensors are written over where they fit:
            memory that is new to the process costs as much as the copying itself.

    Raises:
        ModelError: It holds something that cannot be copied.
    """
    tensors: list[Tensor] = []
    _collect(value, tensors, set())
    return _Copying(_partly_shared(tensors)).copy(value, before)


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


def extent(tensor: Tensor) -> tuple[Any, int, int] | None:
    """Return which memory it is in, and its first byte and the one past its last; None: in none."""
    if not is_plain(tensor) or tensor.numel() == 0 or tensor.device.type == "meta":
        return None
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    start = tensor.data_ptr()
    memory = tensor.device, tensor.untyped_storage().data_ptr()
    return memory, start, start + (last + 1) * tensor.element_size()


def overlaps(tensors: dict[Any, Tensor]) -> dict[Any, set[Any]]:
    """Return, for each name, the other ones whose tensors may share memory with its own."""
    found: dict[Any, set[Any]] = {name: set() for name in tensors}
    places: dict[Any, list[tuple[int, int, Any]]] = {}
    for name, tensor in tensors.items():
        if (place := extent(tensor)) is not None:
            places.setdefault(place[0], []).append((*place[1:], name))
    for one in places.values():
        one.sort(key=lambda item: item[:2])
        for index, (_, end, name) in enumerate(one):
            for start, _, other in one[index + 1 :]:
                if start >= end:
                    break
                found[name].add(other)
                found[other].add(name)
    return found


def _collect(value: Any, tensors: list[Tensor], seen: set[int]) -> None:
    """Add the tensors in ``value``, at any depth."""
    if isinstance(value, Tensor):
        tensors.append(value)
    elif isinstance(value, dict | list | tuple) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            _collect(item, tensors, seen)


def _partly_shared(tensors: list[Tensor]) -> set[Any]:
    """Return the identities of those that overlap with one that is not seen alike."""
    different = {identity(tensor): tensor for tensor in tensors}
    return {name for name, others in overlaps(different).items() if others}


class _Copying:
    """One copy; knows what it has copied already."""

    def __init__(self, partly_shared: set[Any]) -> None:
        self._partly_shared = partly_shared
        self._memories: dict[Any, Tensor] = {}
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
            if type(value) is list:  # known before what is in it, which may be the list itself
                items = self._done[id(value)] = []
                items.extend(map(self.copy, value, places))
                return items
            return type(value)(map(self.copy, value, places))
        try:
            return copy.deepcopy(value, self._done)
        except MemoryError:
            raise
        except Exception as error:  # a lock, an open file
            raise ModelError(
                "model.network: its state holds something else than tensors and plain values"
                f" ({error}); correct its get_extra_state()"
            ) from error

    def _tensor(self, value: Tensor, before: Any) -> Tensor:
        if identity(value) in self._partly_shared:
            return self._view(value)
        if not _fits(before, value) or id(before) in self._used:
            return value.to("cpu", copy=True)
        self._used.add(id(before))
        result: Tensor = before.copy_(value)
        return result

    def _view(self, value: Tensor) -> Tensor:
        """Return a view of the copy of all the memory that ``value`` is in."""
        storage = value.untyped_storage()
        key = value.device, storage.data_ptr()
        if key not in self._memories:
            memory = torch.empty(0, dtype=torch.uint8, device=value.device)
            self._memories[key] = memory.set_(storage).to("cpu", copy=True)
        view = torch.empty(0, dtype=value.dtype).set_(
            self._memories[key].untyped_storage(),
            value.storage_offset(),
            value.shape,
            value.stride(),
        )
        view = view.conj() if value.is_conj() else view
        return torch._neg_view(view) if value.is_neg() else view


def _fits(before: Any, value: Tensor) -> bool:
    """Tell whether both are plain tensors of one kind, laid out alike."""
    return (
        type(before) is type(value) is Tensor
        and is_plain(before)
        and is_plain(value)
        and (before.dtype, before.shape, before.stride())
        == (value.dtype, value.shape, value.stride())
    )
