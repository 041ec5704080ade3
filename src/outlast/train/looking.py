"""One look at values of any kind: what it gives is small, and differs when a value has changed.

Bounded in depth, number and bytes. Blind to what a state holds anyway.
"""

import array
import functools
import itertools
import marshal
import numbers
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outlast.model.copies import is_plain
from outlast.train.apart import sum_of_bits

# attributes of torch's own, and what RunState saves
KNOWN = frozenset(vars(nn.Module())) | {"training", "_compiled_call_impl"}
# behind one attribute: things walked through, one in another, and items of one of them
MOST_THINGS, DEEPEST, MOST_ITEMS = 10_000, 12, 4_000
MOST_NUMBERS = 1_000_000
# of one tensor or array: compared byte by byte; in one pass; beyond, its two ends
SMALL, LARGE = 1 << 20, 1 << 28
NUMBERS = frozenset({type(None), bool, int, float})
PLAIN = NUMBERS | {str, complex}
FOREIGN = sys.stdlib_module_names | {"torch", "numpy"}
WALKED = (
    "_thread",
    "argparse",
    "collections",
    "queue",
    "types",
    "torch.distributions",
    "torch.nn",
    "torch.optim",
)


class Look:
    """Looks at many values; what several lead to is walked through once."""

    def __init__(self, network: nn.Module) -> None:
        """Its modules, parameters and buffers are not looked at: a state holds them."""
        self._network = network
        self._modules = set(map(id, network.modules()))
        self._seen: dict[int, Any] = {}
        self._left = 0

    def at(self, value: Any) -> Any:
        """Return what differs when ``value`` has changed; None for what is no data."""
        self._left = MOST_THINGS
        return self._at(value, 0)

    def _at(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in PLAIN or (kind is tuple and PLAIN.issuperset(map(type, value))):
            return repr(value)  # NaN equals NaN here, and -1 has not the hash of -2
        if isinstance(value, str | numbers.Number | np.generic):
            return repr(value)
        if isinstance(value, bytes | bytearray | array.array):
            return hash(bytes(value))
        key = id(value)
        if key not in self._seen:
            if self._left <= 0 or depth > DEEPEST:
                return None
            self._left -= 1
            self._seen[key] = 0  # what leads back here
            try:
                self._seen[key] = self._content(value, depth + 1)
            except Exception:  # an object may do what it likes when it is asked
                self._seen[key] = None
        return self._seen[key]

    def _content(self, value: Any, depth: int) -> Any:
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, np.ndarray):
            return self._of_array(value, depth)
        if isinstance(value, nn.Module):
            return None if id(value) in self._modules else self._of_module(value, depth)
        if _top(type(value).__module__) == "ctypes":
            return hash(bytes(value))
        found = _of_generator(value)
        if found is not None:
            return found
        own = self._of_attributes(value, depth) if _is_walked(type(value)) else 0
        if isinstance(value, dict):
            pairs = _some(list(value.items()))
            return hash((own, len(value), self._all(itertools.chain(*pairs), depth)))
        if isinstance(value, list | tuple | deque):
            return hash((own, self._of_items(list(value), depth)))
        if isinstance(value, set | frozenset):
            items = _some(list(value))
            return hash((own, len(value), frozenset(self._at(item, depth) for item in items)))
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            return self._all(_behind(value), depth)
        return own or None

    def _all(self, values: Iterable[Any], depth: int) -> int:
        return hash(tuple(self._at(value, depth) for value in values))

    def _of_items(self, items: list[Any], depth: int) -> Any:
        if len(items) > 100 and NUMBERS.issuperset(map(type, items)):
            return len(items), hash(marshal.dumps(_some(items, MOST_NUMBERS), 2))
        return len(items), self._all(_some(items), depth)

    def _of_attributes(self, value: Any, depth: int, without: frozenset[str] = frozenset()) -> int:
        names = [name for cls in type(value).__mro__ for name in _slots(cls)]
        found = {name: getattr(value, name) for name in names if hasattr(value, name)}
        found |= getattr(value, "__dict__", {})
        seen = [(name, self._at(v, depth)) for name, v in found.items() if name not in without]
        return hash(frozenset(seen))

    def _of_module(self, module: nn.Module, depth: int) -> int:
        """Look at one that is not registered anywhere, with its parameters and buffers."""
        parts = (module._parameters, module._buffers, module._modules)
        own = self._of_attributes(module, depth, KNOWN)
        return hash((own, *(self._all(part.values(), depth) for part in parts)))

    @functools.cached_property
    def _memory(self) -> set[Any]:
        """Where the parameters and buffers are: views of them hold nothing of their own."""
        tensors = itertools.chain(self._network.parameters(), self._network.buffers())
        return {_place(tensor) for tensor in tensors if is_plain(tensor)}

    def _of_tensor(self, tensor: Tensor) -> Any:
        if tensor.device.type == "meta":
            return None
        if not is_plain(tensor):
            return id(tensor), None if tensor.is_inference() else tensor._version
        if tensor.numel() == 0:
            return tuple(tensor.shape)
        return None if _place(tensor) in self._memory else _bits_of(tensor.detach())

    def _of_array(self, value: np.ndarray, depth: int) -> Any:
        if value.dtype == object:
            return value.shape, self._of_items(value.ravel().tolist(), depth)
        flat = value.reshape(-1) if value.flags.c_contiguous else value.ravel(order="K")
        if value.nbytes > LARGE:  # which may be on a disk
            count = SMALL // value.itemsize
            return value.shape, *(hash(end.tobytes()) for end in (flat[:count], flat[-count:]))
        return value.shape, hash(flat.tobytes())


def _of_generator(value: Any) -> Any:
    """Return where a source of random numbers is in its stream; None for all else."""
    if isinstance(value, torch.Generator):
        return hash(value.get_state().numpy().tobytes())
    if isinstance(value, np.random.Generator):
        return hash(repr(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return hash(repr(value.get_state()))
    if isinstance(value, random.Random):
        return hash(value.getstate())
    return repr(value) if isinstance(value, itertools.count) else None


def _bits_of(tensor: Tensor) -> Any:
    form = str(tensor.dtype), tuple(tensor.shape)
    size = tensor.element_size()
    count = SMALL // size
    if tensor.numel() <= count:
        return *form, _hash_of(tensor.reshape(-1))
    ends = [tensor.reshape(-1)[:count], tensor.reshape(-1)[-count:]] if _is_flat(tensor) else []
    is_large = tensor.numel() * size > LARGE
    return *form, *map(_hash_of, ends), 0 if is_large else int(sum_of_bits(tensor))


def _is_flat(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _hash_of(flat: Tensor) -> int:
    plain = flat.resolve_conj().resolve_neg().cpu().contiguous()
    return hash(plain.view(torch.uint8).numpy().tobytes())


def _place(tensor: Tensor) -> Any:
    return tensor.device, tensor.untyped_storage().data_ptr()


def _some(items: list[Any], most: int = MOST_ITEMS) -> list[Any]:
    """Return the items, or of too many those at both ends."""
    return items if len(items) <= most else items[: most // 2] + items[-most // 2 :]


def _behind(function: Any) -> Sequence[Any]:
    """Return what a function can keep something in from call to call."""
    if isinstance(function, types.MethodType):
        return function.__self__, function.__func__
    if isinstance(function, functools.partial):
        return function.func, function.args, function.keywords
    if _top(function.__module__) in FOREIGN | {"outlast"}:
        return ()
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return *cells, function.__defaults__, function.__kwdefaults__, function.__dict__


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - empty ones raise
    except ValueError:
        return False
    return True


def _slots(kind: type) -> Sequence[str]:
    names = kind.__dict__.get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _is_walked(kind: type) -> bool:
    """Tell whether the attributes of such objects are data: not those of a lock or a logger."""
    if issubclass(kind, type | types.ModuleType):
        return False
    return _top(kind.__module__) not in FOREIGN | {"outlast"} or kind.__module__.startswith(WALKED)


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]
