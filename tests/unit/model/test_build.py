import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch

from outlast.errors import ModelError
from outlast.model.build import build_network, network_facts
from outlast.sections import ModelSection

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_inputs, num_outputs, width=5):
        super().__init__()
        self.body = torch.nn.Linear(num_inputs, width)  # a comment
        self.head = torch.nn.Linear(width, num_outputs)

    def forward(self, rows):
        return self.head(self.body(rows.flatten(1)).relu())
"""


def own(folder: Path, source: str = SOURCE, name: str = "own.py") -> str:
    """Write a user's file; return the name of its network."""
    (folder / name).write_text(source)
    return f"{folder / name}:Net"


def build(network: str, num_outputs: int = 3, **options: object) -> torch.nn.Module:
    """Build a network for rows of shape (2, 4)."""
    section = ModelSection(network=network, options=options)
    return build_network(section, {"x": (2, 4)}, num_outputs)


def test_a_users_own_file(tmp_path: Path) -> None:
    """file.py:Class is built; facts that the constructor asks for are offered by name."""
    network = build(own(tmp_path))
    assert network.body.in_features == 8
    assert network.head.out_features == 3
    assert network.training


def test_options_reach_the_constructor_and_win(tmp_path: Path) -> None:
    """An option overrides a default, and also a fact that would have been offered."""
    assert build(own(tmp_path), width=11).body.out_features == 11
    rows = SOURCE.replace("rows.flatten(1)", "rows.flatten(1)[:, :6]")
    assert build(own(tmp_path, rows, "six.py"), num_inputs=6).body.in_features == 6


def test_an_installed_module() -> None:
    """module:Class is any class of an installed package."""
    section = ModelSection(network="torch.nn:Linear", options={"in_features": 4, "out_features": 3})
    assert isinstance(build_network(section, {"x": (4,)}, 3), torch.nn.Linear)
    offered = ModelSection(network="torch.nn:Linear", options={"out_features": 3})
    assert build_network(offered, {"x": (6,)}, 3).in_features == 6


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("no_such_module:Net", "no_such_module:Net cannot be imported: ModuleNotFoundError"),
        ("no_such_file.py:Net", "cannot be imported: FileNotFoundError"),
        ("torch.nn:Linaer", "torch.nn has no class or function Linaer"),
        ("torch.nn:functional", "torch.nn has no class or function functional"),
        ("math:sqrt", "math:sqrt cannot be built"),
        ("collections:UserDict", "collections:UserDict gives no torch.nn.Module"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(network: str, said: str) -> None:
    """A name that cannot be imported, called or used is an error that repeats it."""
    with pytest.raises(ModelError, match=said):
        build(network)


def test_a_file_that_fails_is_refused_with_its_reason(tmp_path: Path) -> None:
    """An exception or syntax error in a user's file is named; once repaired, it is imported."""
    network = own(tmp_path, "import nothing_of_this_name")
    with pytest.raises(ModelError, match="No module named 'nothing_of_this_name'"):
        build(network)
    with pytest.raises(ModelError, match="SyntaxError"):
        build(own(tmp_path, "def :", "broken.py"))
    own(tmp_path)
    assert build(network).head.out_features == 3


def test_an_unknown_option_is_refused_with_the_signature(tmp_path: Path) -> None:
    """An option that the constructor lacks: the error names it and shows what there is."""
    with pytest.raises(ModelError, match=r"'widht'.* signature is .*width=5.* model.options"):
        build(own(tmp_path), widht=3)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("rows.flatten(1)[:, :2]", r"gives \(2, 2\) for a batch of 2, .* needs \(2, 3\)"),
        ("rows.mean()", r"gives \(\) for"),
        ("(rows, rows)", "gives tuple for"),
        ("rows @ rows", r"fails on rows of shape \{'x': \(2, 4\)\}"),
    ],
)
def test_wrong_logits_are_refused(tmp_path: Path, result: str, said: str) -> None:
    """A network that does not give (rows, outputs) logits is refused before training."""
    source = SOURCE.replace("self.head(self.body(rows.flatten(1)).relu())", result)
    with pytest.raises(ModelError, match=said):
        build(own(tmp_path, source))


def test_a_binary_network_may_give_flat_logits(tmp_path: Path) -> None:
    """With one output, (rows,) is as good as (rows, 1); with more it is not."""
    flat = SOURCE.replace(".relu())", ".relu()).mean(1)")
    build(own(tmp_path, flat), num_outputs=1)
    with pytest.raises(ModelError, match=r"gives \(2,\)"):
        build(own(tmp_path, flat, "flat.py"), num_outputs=3)


def test_trying_a_network_leaves_it_as_it_was(tmp_path: Path) -> None:
    """The trial changes no running statistics and no mode."""
    source = SOURCE.replace("rows.flatten(1)", "self.norm(rows.flatten(1))").replace(
        "self.head =", "self.norm = torch.nn.BatchNorm1d(num_inputs); self.head ="
    )
    network = build(own(tmp_path, source))
    assert int(network.norm.num_batches_tracked) == 0
    assert network.norm.training


def test_a_network_is_known_by_its_code(tmp_path: Path) -> None:
    """Path, comments and layout do not count; code does (story 57)."""
    first = network_facts(own(tmp_path, name="one.py"))
    laid_out = SOURCE.replace("  # a comment", "").replace("\n    def for", "\n\n\n    def for")
    assert laid_out != SOURCE
    assert network_facts(own(tmp_path, laid_out, "two.py")) == first
    other = network_facts(own(tmp_path, SOURCE.replace("relu", "tanh"), "three.py"))
    assert other["model.network"] == first["model.network"] == "Net"
    assert other["model.source"] != first["model.source"]
    assert len(first["model.source"]) == 64


def test_the_users_modules_beside_a_network_are_part_of_it(tmp_path: Path) -> None:
    """It may import them as a script does; their code counts, in whatever way it is exported."""
    found = []
    for index, factor in enumerate((1, 2)):
        folder = tmp_path / str(index)
        folder.mkdir()
        layers = f"import torch\nclass Net{index}(torch.nn.Linear):\n    factor = {factor}\n"
        (folder / f"layers{index}.py").write_text(layers.replace(f"Net{index}", "Base"))
        source = f"import functools, layers{index}\nNet = functools.partial(layers{index}.Base, 1)"
        path = own(folder, source)
        found.append(network_facts(path)["model.source"])
    assert found[0] != found[1]


def test_modules_that_swap_their_content_are_another_network(tmp_path: Path) -> None:
    """Their names count, and not the folder that they lie in, nor a link to the network."""
    found = {}
    for name, (one, other) in {"a": (1, 2), "b": (2, 1), "c": (1, 2)}.items():
        folder = tmp_path / name
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "enc.py").write_text(f"W = {one}\n")
        (folder / "parts" / "dec.py").write_text(f"W = {other}\n")
        code = f"if False:\n    import parts.enc, parts.dec\n{SOURCE}"
        found[name] = network_facts(own(folder, code))["model.source"]
    assert found["a"] == found["c"] != found["b"]
    link = tmp_path / "links" / "net.py"
    link.parent.mkdir()
    link.symlink_to(own(tmp_path / "a", code).rpartition(":")[0])
    assert network_facts(f"{link}:Net")["model.source"] == found["a"]


def test_what_happens_to_be_imported_is_no_part_of_a_network(tmp_path: Path) -> None:
    """A network at the top of a project has its environment below it: no library joins in."""
    before = network_facts(own(tmp_path))
    below = tmp_path / "venv" / "below_the_network.py"
    below.parent.mkdir()
    below.write_text("loaded = True\n")
    spec = importlib.util.spec_from_file_location("below_the_network", below)
    assert spec is not None
    sys.modules["below_the_network"] = importlib.util.module_from_spec(spec)
    ghost = types.ModuleType("ghost")
    ghost.__file__ = str(tmp_path / "ghost.py")  # torch has one: torch.classes
    sys.modules["ghost"] = ghost
    try:
        assert network_facts(own(tmp_path)) == before
    finally:
        del sys.modules["below_the_network"], sys.modules["ghost"]


def test_code_that_changes_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    """Nobody knows which version runs: a state of the one must not claim to be of the other."""
    changes_itself = f"import pathlib\npathlib.Path(__file__).write_text({SOURCE!r})\n{SOURCE}"
    network = own(tmp_path, changes_itself)
    build(network)
    with pytest.raises(ModelError, match="was changed while it was imported"):
        network_facts(network)


def test_every_kind_of_network_has_facts() -> None:
    """A built-in one has its name alone, an installed one also the digest of its module."""
    assert network_facts("cnn1d") == {"model.network": "cnn1d"}
    installed = network_facts("torch.nn:Linear")
    assert installed["model.network"] == "Linear"
    assert installed["model.source"] != network_facts("torch.nn:ReLU")["model.source"]
