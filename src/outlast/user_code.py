"""The user's own code behind `model.network`: which files it is, found by syntax. No torch here.

Snakemake watches these files, and a recipe holds a digest of them. What happens to be imported
in a process would not do: it differs between a login node and a GPU, and between two versions.
"""

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})


def user_files(network: str) -> list[Path]:
    """Return the file that ``network`` names, and all that it imports from its side or below.

    Args:
        network: ``file.py:Class`` or ``module:Class``; anything else is a built-in.

    Returns:
        Sorted, and relative where ``network`` is. Empty for a built-in and for the network of an
        installed library. A file that does not exist stands alone. What is imported by a computed
        name (``importlib``) is not found.
    """
    place, _, _ = network.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).expanduser()
        # its folder joins sys.path, and of a linked file it is the real one
        return _closure([path], path.resolve().parent if path.is_symlink() else path.parent)
    root = _root_of(place.split(".")[0]) if place else None
    if root is None or LIBRARY_FOLDERS & set(root.parts):
        return []
    return _closure(_module_files(root, place.split(".")), root)


def _root_of(package: str) -> Path | None:
    """Return the folder that an importable top-level module lies in."""
    try:
        spec = importlib.util.find_spec(package)  # imports nothing: there is no dot in the name
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [str(spec.origin)])
    return Path(places[0]).parent


def _closure(files: list[Path], root: Path) -> list[Path]:
    found: set[Path] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo += _imports(file, root)
    return sorted(found)


def _imports(file: Path, root: Path) -> Iterator[Path]:
    """Yield the files below ``root`` that the import statements of a file can mean."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # whoever imports it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else root
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _module_files(base, [*parts, alias.name])


def _module_files(base: Path, parts: Sequence[str]) -> list[Path]:
    """Return the files that importing the dotted name would run, as far as they exist."""
    files = []
    for length in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:length])
        candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
        files += [path for path in candidates if path.is_file()]
    return files
