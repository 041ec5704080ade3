"""From `model:` of the experiment file to a module: built-in, the user's own, or a library's."""

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import ModelError
from outlast.files import digest, digest_values
from outlast.model.networks import BUILT_IN
from outlast.sections import ModelSection
from outlast.user_code import user_files

# prefix of the names under which files of users are imported
USER_MODULE = "outlast_user_"
Shapes = Mapping[str, Sequence[int]]


def build_network(section: ModelSection, row_shapes: Shapes, num_outputs: int) -> nn.Module:
    """Build the network and try it on two rows.

    Args:
        section: Name or import path, and the options for its constructor.
        row_shapes: Input name -> shape of one row, in the order of ``forward``.
        num_outputs: Logits per row that the loss needs.

    Raises:
        ModelError: It cannot be imported or built, or does not give that many logits.
    """
    constructor = _find(section.network)
    arguments = _offered(constructor, row_shapes, num_outputs) | section.options
    try:
        network = constructor(**arguments)
    except Exception as error:
        raise ModelError(
            f"model.network: {section.network} cannot be built with {arguments}: {error};"
            f" its signature is {inspect.signature(constructor)}: correct model.options"
        ) from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"model.network: {section.network} gives no torch.nn.Module")
    _try(network, section.network, row_shapes, num_outputs)
    return network


def network_facts(network: str) -> dict[str, str]:
    """Return what a recipe must know of a network: its name, and a digest of its code.

    Of the code and not of the path; of the syntax tree, so that comments and layout do not
    count. Of a library it is the module that defines the network; of the user's own code, all
    that it imports. The built-in ones have a name only.
    """
    if network in BUILT_IN:
        return {"model.network": network}
    before = _code_at_import(network)
    _find(network)
    code = _digest_of(user_files(network), network)
    if code != before:
        raise ModelError(
            f"model.network: the code of {network} was changed while it was imported, and nobody"
            " knows which version runs; start the run again"
        )
    code = code or _digest_of(_library_files(network), network)
    return {"model.network": network.rpartition(":")[2], "model.source": code}


@functools.cache
def _code_at_import(network: str) -> str:
    """Return the digest of the user's code; asked first just before it is imported."""
    return _digest_of(user_files(network), network)


def _digest_of(files: Sequence[Path], network: str) -> str:
    """Return a digest of syntax trees, "" without files. What does not parse counts as text.

    Each with its name: two modules that swap their content are another network.
    """
    trees = {}
    for name, file in zip(_names(files, network), files, strict=True):
        with contextlib.suppress(OSError):
            content = file.read_bytes()
            try:
                trees[name] = ast.dump(ast.parse(content))
            except (SyntaxError, ValueError):
                trees[name] = content.decode(errors="replace")
    return digest_values(trees) if trees else ""


def _names(files: Sequence[Path], network: str) -> list[str]:
    """Name files from the folder that holds them all; the one that ``network`` names has none."""
    named = Path(network.rpartition(":")[0]).expanduser()
    # its modules lie beside the file that a link leads to
    places = [
        (file.resolve() if file == named else file).parent.resolve() / file.name for file in files
    ]
    folder = os.path.commonpath([place.parent for place in places]) if places else ""
    return [
        "" if file == named else os.path.relpath(place, folder)
        for file, place in zip(files, places, strict=True)
    ]


def _library_files(network: str) -> list[Path]:
    """Return the file of the module that is named, and of the one that defines the network."""
    named = _import(network.rpartition(":")[0])
    defining = sys.modules.get(getattr(_find(network), "__module__", ""), named)
    files = [Path(str(module.__file__)) for module in (named, defining)]
    return [file for file in dict.fromkeys(files) if file.suffix == ".py"]  # others are compiled


def _find(network: str) -> Callable[..., Any]:
    if network in BUILT_IN:
        return BUILT_IN[network]
    place, _, name = network.rpartition(":")
    _code_at_import(network)
    try:
        module = _import(place)
    except Exception as error:
        raise ModelError(
            f"model.network: {network} cannot be imported: {type(error).__name__}: {error};"
            " file.py:Class is looked for from the folder of the Snakefile, module:Class among the"
            " installed packages"
        ) from error
    constructor: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(constructor):
        raise ModelError(
            f"model.network: {place} has no class or function {name}; check what follows the colon"
        )
    return constructor


def _import(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _import_file(Path(place).expanduser())
    return importlib.import_module(place)


def _import_file(path: Path) -> ModuleType:
    name = USER_MODULE + digest(str(path.resolve()).encode())[:12]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the ending .py was checked"
    assert spec.loader is not None, "so it has the loader of .py files"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))  # its own modules at its side, as in a script
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _offered(
    constructor: Callable[..., Any], row_shapes: Shapes, num_outputs: int
) -> dict[str, Any]:
    """Return those facts about the data that the constructor asks for by name."""
    shapes = [tuple(shape) for shape in row_shapes.values()]
    facts: dict[str, Any] = {
        "input_shapes": shapes,
        "input_shape": shapes[0],
        "num_inputs": math.prod(shapes[0]),
        "in_features": math.prod(shapes[0]),
        "in_channels": shapes[0][0] if len(shapes[0]) > 1 else 1,
        "num_outputs": num_outputs,
        "num_classes": num_outputs,
    }
    asked = inspect.signature(constructor).parameters
    return {name: fact for name, fact in facts.items() if name in asked}


def _try(network: nn.Module, name: str, row_shapes: Shapes, num_outputs: int) -> None:
    rows = [torch.zeros(2, *shape) for shape in row_shapes.values()]
    training = network.training
    try:
        with torch.no_grad():
            logits = network.eval()(*rows)
    except Exception as error:
        shapes = {key: tuple(shape) for key, shape in row_shapes.items()}
        raise ModelError(
            f"model.network: {name} fails on rows of shape {shapes}: {error};"
            " correct model.options, data.inputs or its forward()"
        ) from error
    network.train(training)
    wanted = [(2, num_outputs)] + ([(2,)] if num_outputs == 1 else [])
    if not isinstance(logits, Tensor) or tuple(logits.shape) not in wanted:
        shown = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(
            f"model.network: {name} gives {shown} for a batch of 2, and this loss needs"
            f" {wanted[0]}; take num_outputs in its constructor, or choose loss.name to fit"
        )
