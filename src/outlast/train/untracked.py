"""What changes in a network while it trains and is in no state: a resumed run would not have it.

Nothing can tell whether the numbers depend on it (a counter for annealing does, the last
attention map does not), so it is named once, and the run goes on.
"""

import sys
import sysconfig
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from outlast.train.looking import FOREIGN, KNOWN, Look

# A layer with a parameter of such a name makes the attribute without it anew in each pass: old
# weight and spectral normalization, pruning.
MADE_FROM = ("_orig", "_g", "_bar")
# what torch calls on the way through a module
HOOKS = frozenset(
    name for name, value in vars(nn.Module()).items() if "hook" in name and hasattr(value, "values")
)
# that looking may take
MOST_OF_THE_TIME = 0.01


class Untracked:
    """Compares what the modules, their classes and the user's files keep with what it was."""

    def __init__(self, network: nn.Module) -> None:
        """Note it as it is now."""
        self._network = network
        kinds = dict.fromkeys(kind for module in network.modules() for kind in type(module).__mro__)
        self._files = _files_of(kinds)
        kinds |= dict.fromkeys(kind for file in self._files for kind in _classes_in(file))
        kinds |= dict.fromkeys(one for kind in list(kinds) for one in _classes_in(kind))
        self._kinds = [kind for kind in kinds if _is_users(kind.__module__)]
        self._before = self._look()
        self._named: set[str] = set()
        self._not_before = 0.0

    def news(self) -> list[str]:
        """Return :meth:`changed`, or nothing where looking would take much of the time."""
        started = time.monotonic()
        if started < self._not_before:
            return []
        names = self.changed()
        now = time.monotonic()
        self._not_before = now + (now - started) / MOST_OF_THE_TIME
        return names

    def changed(self) -> list[str]:
        """Name what has changed since, each once."""
        now = self._look()
        names = [name for name, value in now.items() if value != self._before.get(name)]
        names += [name for name in self._before if name not in now]
        new = [name for name in names if name not in self._named]
        self._named.update(new)
        return new

    def _look(self) -> dict[str, Any]:
        look = Look(self._network)
        found = {name: look.at(value) for name, value in _attributes(self._network)}
        for file in self._files:
            place = Path(str(file.__file__)).name
            for name, value in list(vars(file).items()):
                if not _is_pythons(name) and not _is_from_elsewhere(value, file):
                    found[f"{name} in {place}"] = look.at(value)
        for kind in self._kinds:
            for name, value in list(vars(kind).items()):
                if _is_data(name, value):
                    # of a static or class method, the function
                    kept = getattr(value, "__func__", value)
                    found[f"{kind.__qualname__}.{name}"] = look.at(kept)
        return found


def _attributes(network: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, weight in network.named_parameters():
        for name, value in vars(weight).items():
            yield f"{path}.{name}", value
        if hooks := weight._backward_hooks:
            yield f"{path}: a hook", hooks
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if name in HOOKS:
                yield f"{path or 'network'}: a hook ({name})", value
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            continue  # it takes care of its own
        for name, value in vars(module).items():
            if name not in KNOWN and not _is_made_anew(module, name):
                yield f"{path}.{name}" if path else name, value


def _is_made_anew(module: nn.Module, name: str) -> bool:
    if name == "_flat_weights" and isinstance(module, nn.RNNBase):
        return True
    return any(f"{name}{ending}" in module._parameters for ending in MADE_FROM)


def _is_data(name: str, value: Any) -> bool:
    """Tell whether an attribute of a class may keep something: no property, nothing of Python's.

    A method may, in its defaults, its closure and its own attributes.
    """
    if _is_pythons(name):
        return False
    is_method = isinstance(value, types.FunctionType | staticmethod | classmethod)
    return is_method or not hasattr(type(value), "__get__")


def _is_pythons(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _classes_in(place: types.ModuleType | type) -> list[type]:
    """Return the classes that are defined in a file, or in a class."""
    home = place.__name__ if isinstance(place, types.ModuleType) else place.__module__
    return [
        value
        for value in list(vars(place).values())
        if isinstance(value, type) and value.__module__ == home
    ]


def _files_of(kinds: dict[type, None]) -> list[types.ModuleType]:
    """Return the user's modules that define these classes, and those that they take things from."""
    names = dict.fromkeys(kind.__module__ for kind in kinds)
    found: dict[str, types.ModuleType] = {}
    while names:
        name = next(iter(names))
        del names[name]
        module = sys.modules.get(name)
        if name in found or module is None or not _is_in_own_file(module):
            continue
        found[name] = module
        names |= dict.fromkeys(map(_home, list(vars(module).values())))
    return list(found.values())


def _home(value: Any) -> str:
    """Return the name of the module that a thing is, or is defined in."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    kind = value if isinstance(value, type | types.FunctionType) else type(value)
    return str(kind.__module__)


def _is_from_elsewhere(value: Any, place: types.ModuleType) -> bool:
    if isinstance(value, type | types.ModuleType):
        return True  # classes are looked at for themselves
    return type(value) is types.FunctionType and value.__module__ != place.__name__


def _is_in_own_file(module: types.ModuleType) -> bool:
    """Tell whether a module is the user's, and no library."""
    file = getattr(module, "__file__", None) or ""
    folders = set(Path(file).parts)
    is_installed = folders & {"site-packages", "dist-packages"}
    is_python = file.startswith(sysconfig.get_path("stdlib"))
    return _is_users(module.__name__) and file.endswith(".py") and not (is_installed or is_python)


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in FOREIGN | {"outlast"}
