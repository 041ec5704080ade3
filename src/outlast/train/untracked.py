"""What changes in a network while it trains and is in no state: a resumed run would not have it.

Nothing can tell whether the numbers depend on it (a counter for annealing does, the last
attention map does not), so it is named once, and the run goes on.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# attributes of torch's own, and what RunState saves
KNOWN = frozenset(vars(nn.Module())) | {"training"}
MOST_ITEMS = 100


class Untracked:
    """Compares the plain attributes of all modules with what they were."""

    def __init__(self, network: nn.Module) -> None:
        """Note the attributes as they are now."""
        self._network = network
        self._before = dict(_attributes(network))
        self._named: set[str] = set()

    def changed(self) -> list[str]:
        """Name the attributes that have changed since, each once."""
        now = dict(_attributes(self._network))
        names = [name for name, value in now.items() if value != self._before.get(name)]
        new = [name for name in names if name not in self._named]
        self._named.update(new)
        return new


def _attributes(network: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in network.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            continue  # it takes care of its own
        for name, value in vars(module).items():
            if name not in KNOWN:
                yield f"{path}.{name}" if path else name, _seen(value)


def _seen(value: Any) -> Any:
    """Return something small that differs when the value has changed; None for what is no data."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)  # NaN equals NaN here
    if isinstance(value, Tensor):
        # made in inference mode, it counts no changes
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.nbytes < 1_000_000 else None
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple | set):
        return len(value), [_seen(item) for item in list(value)[:MOST_ITEMS]]
    return None
