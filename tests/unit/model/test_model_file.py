import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outlast.errors import CheckpointError
from outlast.files import seal
from outlast.model.build import build_network
from outlast.model.file import ModelFile, load_model_file
from outlast.sections import ModelSection

SHAPES = {"x": [2, 9]}


def trained(**changes: Any) -> tuple[nn.Module, ModelFile]:
    """A network with its own running statistics, and its file."""
    options = {"channels": [4], "batch_norm": True}
    network = build_network(ModelSection(network="cnn1d", options=options), SHAPES, 3)
    network.train()(torch.randn(32, 2, 9) + 1)
    content: dict[str, Any] = {
        "weights": network.state_dict(),
        "config": {"model": {"network": "cnn1d", "options": options}},
        "classes": ["a", "b", "c"],
        "row_shapes": SHAPES,
        "num_outputs": 3,
        "normalization": {"kind": "none", "names": ["x"], "mean": [], "std": []},
        "data_content": "c0de",
        "best": {"epoch": 3, "val_f1": None},
        "fingerprint": "f00d",
    }
    return network.eval(), ModelFile(**content | changes)


def test_a_loaded_model_predicts_the_same(tmp_path: Path) -> None:
    """What was saved comes back: equal bits of logits, equal plain values."""
    network, model = trained()
    model.save(tmp_path / "model.pt")
    loaded = load_model_file(tmp_path / "model.pt")
    rows = torch.randn(7, 2, 9)
    built = loaded.build()
    assert not built.training
    assert torch.equal(built(rows), network(rows))
    assert (loaded.classes, loaded.best, loaded.versions) == (
        model.classes,
        model.best,
        model.versions,
    )


def test_the_file_holds_tensors_and_plain_values_only(tmp_path: Path) -> None:
    """torch.load(weights_only=True) reads it alone; beside tensors all of it is JSON (story 13)."""
    trained()[1].save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    weights = content.pop("weights")
    assert not any(name.startswith(("module.", "_orig_mod.")) for name in weights)
    content["normalization"].pop("mean")
    assert json.loads(json.dumps(content)) == content


def test_a_file_without_transient_buffers_is_read(tmp_path: Path) -> None:
    """As earlier versions have written it."""
    network, model = trained()
    model.save(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    assert content.pop("buffers") == {}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    (tmp_path / "model.pt").write_bytes(seal(buffer.getvalue()))
    rows = torch.randn(3, 2, 9)
    assert torch.equal(load_model_file(tmp_path / "model.pt").build()(rows), network(rows))


@pytest.mark.parametrize("keep", [0, 1, 21, 500, -1, -90])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    """A file cut off anywhere is an error that names it and what to do."""
    path = tmp_path / "model.pt"
    trained()[1].save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.pt: truncated or altered.*train the run ag"):
        load_model_file(path)


def test_an_altered_file_is_refused(tmp_path: Path) -> None:
    """One flipped bit in the weights is noticed."""
    path = tmp_path / "model.pt"
    trained()[1].save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or altered"):
        load_model_file(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    """No file: an error with its path and the system's reason."""
    with pytest.raises(CheckpointError, match=r"no\.pt: cannot be read: No such file"):
        load_model_file(tmp_path / "no.pt")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """An intact torch file of other content is no model."""
    for content in ({"weights": {}}, [1, 2]):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        (tmp_path / "other.pt").write_bytes(seal(buffer.getvalue()))
        with pytest.raises(CheckpointError, match="no model file of this version"):
            load_model_file(tmp_path / "other.pt")


class Hostile:
    """Runs a command when it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, (f"touch {self.mark}",)


def test_a_hostile_file_does_not_run(tmp_path: Path) -> None:
    """A sealed archive with code in its pickle is refused as no model file; the code never runs."""
    mark = tmp_path / "ran"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Hostile(mark), protocol=2))
        file.writestr("archive/version", "3\n")
    (tmp_path / "hostile.pt").write_bytes(seal(buffer.getvalue()))
    with pytest.raises(CheckpointError, match=r"hostile\.pt: no model file"):
        load_model_file(tmp_path / "hostile.pt")
    assert not mark.exists()


def test_weights_that_do_not_fit_the_network_are_refused(tmp_path: Path) -> None:
    """Loading is strict: a missing weight is an error, not a random layer (story 14)."""
    _, model = trained()
    path = tmp_path / "model.pt"
    trained(weights={k: v for k, v in model.weights.items() if k != "head.bias"})[1].save(path)
    with pytest.raises(RuntimeError, match=r"head\.bias"):
        load_model_file(path).build()
