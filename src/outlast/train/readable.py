"""A state that could be written and never read again is refused before a step is trained for it.

Without a disk, and quickly: numbers always come back, and are left out.
"""

import copy
import io
import re
from collections import OrderedDict
from typing import Any

import torch

from outlast.errors import ModelError
from outlast.model.copies import is_plain
from outlast.train.state_file import is_lack_of_memory


def refuse_unreadable(values: dict[str, Any]) -> None:
    """Write what a state shall hold, and read it back, in memory.

    Raises:
        ModelError: No attempt could load it: each would start over, for ever.
    """
    content = io.BytesIO()
    try:
        torch.save(_Outline().of(values), content)
        content.seek(0)
        torch.load(content, weights_only=True, map_location="cpu")
    except Exception as error:  # of the network's own classes, too, which may raise anything
        if is_lack_of_memory(error):
            raise
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = named[1] if named else (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            "model.network: its state holds something else than tensors and plain values"
            f" ({what}); correct its get_extra_state()"
        ) from error


class _Outline:
    """The same values, with the tensors emptied; what is one thing stays one."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._memories: dict[Any, torch.UntypedStorage] = {}

    def of(self, value: Any) -> Any:
        """Return the outline of ``value``; what is of a class of its own is its own outline."""
        if id(value) not in self._done:
            self._done[id(value)] = self._new(value)
        return self._done[id(value)]

    def _new(self, value: Any) -> Any:
        # by the very type: pickle treats a class that derives from one in another way
        if type(value) is torch.Tensor and is_plain(value) and not vars(value):
            return self._tensor(value)
        if type(value) in (dict, OrderedDict):
            result = self._done[id(value)] = copy.copy(value)  # with the _metadata of a state dict
            for key, item in value.items():
                result[key] = self.of(item)
            return result
        if type(value) is list:
            items = self._done[id(value)] = []
            items.extend(map(self.of, value))
            return items
        return tuple(map(self.of, value)) if type(value) is tuple else value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        # memory that two tensors share with different dtypes is refused by torch.save
        start = value.untyped_storage().data_ptr()  # 0: none, which is no memory that two share
        key = (value.device, start) if start else id(value)
        memory = self._memories.setdefault(key, torch.UntypedStorage(16))
        outline: torch.Tensor = torch.empty(0, dtype=value.dtype).set_(memory, 0, (0,), (1,))
        return outline
