"""Which files are a user's own code behind `model.network`."""

import sys
from pathlib import Path

import pytest

from outlast.user_code import user_files


def write(folder: Path, **files: str) -> None:
    """Write Python files; two underscores in a name stand for a folder."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        for above in path.parents:
            if above == folder:
                break
            (above / "__init__.py").touch()


def found(network: str, folder: Path) -> list[str]:
    """The files as the test wrote them."""
    return [str(path.relative_to(folder)) for path in user_files(network)]


@pytest.mark.parametrize(
    ("statement", "files"),
    [
        ("import a", ["a.py"]),
        ("import a as b", ["a.py"]),
        ("from a import Layer", ["a.py"]),
        ("from a import *", ["a.py"]),
        ("def late():\n    import a", ["a.py"]),
        ("try:\n    import a\nexcept ImportError:\n    import b", ["a.py", "b.py"]),
        ("import p.q", ["p/__init__.py", "p/q.py"]),
        ("from p import q", ["p/__init__.py", "p/q.py"]),
        ("from p.q import Layer", ["p/__init__.py", "p/q.py"]),
        ("import p", ["p/__init__.py"]),
        ("from p import r", ["p/__init__.py", "p/q.py", "p/r.py", "p/s.py"]),
        ("import torch, numpy.linalg", []),
        ("import c", ["a.py", "b.py", "c.py"]),
        ("import d", ["d.py", "e.py"]),
        ("import broken", ["broken.py"]),
    ],
)
def test_imports_are_followed(tmp_path: Path, statement: str, files: list[str]) -> None:
    """Every form of import, over several files, packages and circles, at its side or below."""
    write(
        tmp_path,
        net=statement,
        a="",
        b="",
        c="import a, b",
        d="import e",
        e="import d",
        broken="def (",
        p__q="",
        p__r="from .q import Layer\nfrom . import s",
        p__s="from .. import beyond",
    )
    assert found(f"{tmp_path}/net.py:Net", tmp_path) == sorted([*files, "net.py"])


def test_paths_stay_as_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working directory: what Snakemake shows and compares."""
    write(tmp_path, nets__net="import layers", nets__layers="")
    monkeypatch.chdir(tmp_path)
    assert user_files("nets/net.py:Net") == [Path("nets/layers.py"), Path("nets/net.py")]
    (tmp_path / "link.py").symlink_to("nets/net.py")
    assert user_files("link.py:Net") == [tmp_path / "nets/layers.py", Path("link.py")]
    assert user_files("absent.py:Net") == [Path("absent.py")]
    write(tmp_path, beyond="from ... import layers")
    assert user_files("beyond.py:Net") == [Path("beyond.py")]


def test_a_package_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """module:Class counts when it lies in a folder of the user's, and is not imported for that."""
    write(
        tmp_path, mynets__cells="from mynets.layers import L\nraise SystemExit", mynets__layers=""
    )
    monkeypatch.syspath_prepend(tmp_path)
    files = ["mynets/__init__.py", "mynets/cells.py", "mynets/layers.py"]
    assert found("mynets.cells:Net", tmp_path) == files
    assert "mynets" not in sys.modules


@pytest.mark.parametrize(
    "network", ["mlp", "torch.nn:Linear", "math:sqrt", "__main__:X", "no_such_package:X"]
)
def test_built_ins_and_libraries_have_none(network: str) -> None:
    """What pip has installed is not the user's own."""
    assert user_files(network) == []
