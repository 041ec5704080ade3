"""The network that is evaluated is the one that was trained, in every number that counts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import odd_networks
import pytest
import torch

from outlast.config import parse
from outlast.data.store import open_data, prepare
from outlast.evaluate.predict import predict
from outlast.evaluate.score import evaluate
from outlast.model.file import load_model_file
from outlast.sections import Config
from outlast.train.interrupt import Interrupt
from outlast.train.run import train_run


def own(name: str) -> str:
    """The name of a network of that file in a config."""
    return f"{odd_networks.__file__}:{name}"


# evaluated on the validation split, then
NO_TEST = {"test": 0.0}
NETWORKS = ["mlp"] + [own(name) for name in ("Fourier", "FourierBuffer", "Counting")]


def config_of(network: str, **training: Any) -> Config:
    """A config of a network of the file above, without a test split."""
    return parse(
        {
            "data": {"source": "iris", "split": NO_TEST},
            "model": {"network": network},
            "training": {"epochs": 3, "batch_size": 16, "learning_rate": 0.02} | training,
            "launch": {"device": "cpu"},
        }
    )


def trained(config: Config, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Train; return the model file and the history."""
    prepare(config.data, folder / "data")
    assert train_run(config, folder / "data", folder / "run", Interrupt()) == 0
    return folder / "run" / "model_best.pt", json.loads((folder / "run/history.json").read_text())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_validation_split_gets_the_scores_of_validation(
    network: str, precision: str, tmp_path: Path
) -> None:
    """Whatever the constructor has drawn, and no state dict holds; in the same precision."""
    model, history = trained(config_of(network, precision=precision), tmp_path)
    torch.manual_seed(99)
    found = evaluate(model, tmp_path / "data", tmp_path / "test")
    assert found["split"] == "validation"
    assert found["loss"] == pytest.approx(history["best"]["val_loss"], rel=1e-6)
    assert found["accuracy"] == history["best"]["val_acc"]
    assert found["auc"] == history["best"]["val_auc"]


def test_a_network_that_draws_in_evaluation_gets_the_same_scores_again(tmp_path: Path) -> None:
    """From the seed of the training, and of the batch."""
    model, _ = trained(config_of(own("Drawing")), tmp_path)
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = torch.rand(1)
        torch.manual_seed(seed)
        losses.append(evaluate(model, tmp_path / "data", tmp_path / f"test{seed}")["loss"])
        assert torch.equal(torch.rand(1), expected), "the caller's generator is where it was"
    assert losses[0] == losses[1]


def test_building_a_model_draws_nothing_from_the_callers_generators(tmp_path: Path) -> None:
    """It starts from a seed of its own, and gives theirs back."""
    model, _ = trained(config_of("mlp"), tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model_file(model).build()
    assert torch.equal(torch.rand(3), expected)
    assert open_data(tmp_path / "data").splits["test"].size == 0


def test_half_precision_of_a_gpu_is_none_on_a_cpu(tmp_path: Path) -> None:
    """Torch has no LSTM of float16 there."""
    model, _ = trained(config_of(own("Recurrent")), tmp_path)
    data, file = open_data(tmp_path / "data"), load_model_file(model)
    rows, cpu = np.arange(5), torch.device("cpu")
    expected = predict(file, data, rows, cpu).logits
    half = {**file.config, "training": {**file.config["training"], "precision": "float16"}}
    assert torch.equal(predict(replace(file, config=half), data, rows, cpu).logits, expected)
