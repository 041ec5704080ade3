"""model_best.pt: all that is needed to predict, in one file of tensors and plain values."""

import io
import platform
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from outlast.errors import CheckpointError
from outlast.files import is_intact, seal_into, write_atomically
from outlast.model.build import build_network
from outlast.model.heads import StudyNetwork, heads_from
from outlast.model.seeding import randomness_kept, seed_everything
from outlast.model.weights import load_weights
from outlast.sections import ModelSection

MODEL_BEST = "model_best.pt"


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": str(np.__version__),
    }


@dataclass(frozen=True)
class ModelFile:
    """What model_best.pt holds.

    Attributes:
        weights: State dict of the network, plain names, on the CPU.
        config: The sections of the run that shape its numbers, plain values.
        classes: Name of each class index.
        row_shapes: Input name -> shape of one row, in the order of ``forward``.
        num_outputs: Logits per row: 1 for a binary loss.
        normalization: For ``Normalization.from_state``.
        data_content: Digest of the data and splits that it was trained on.
        best: Epoch (from 1) and metrics of the weights, and which metric has selected them.
        fingerprint: Of the run's recipe.
        heads: State dicts of adversary and regression, below their names; empty without one.
        versions: Of Python, torch, numpy at the time of training.
        buffers: Of the network, those with ``persistent=False``, by name.
    """

    weights: dict[str, Tensor]
    config: dict[str, Any]
    classes: list[str]
    row_shapes: dict[str, list[int]]
    num_outputs: int
    normalization: dict[str, Any]
    data_content: str
    best: dict[str, Any]
    fingerprint: str
    heads: dict[str, Tensor] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=versions)
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: Path, staging: Path | None = None) -> None:
        """Write the file atomically, with its digest; see ``files.write_atomically``."""
        # not asdict(): it would copy every tensor
        values = {item.name: getattr(self, item.name) for item in fields(self)}

        def write(file: BinaryIO) -> None:
            seal_into(file, partial(torch.save, values))

        write_atomically(path, write, staging=staging)

    @property
    def seed(self) -> int:
        """Of the training."""
        return int(self.config.get("training", {}).get("seed", 0))

    @property
    def precision(self) -> str:
        """Of the training."""
        return str(self.config.get("training", {}).get("precision", "float32"))

    def build(self) -> nn.Module:
        """Return the network with these weights, in evaluation mode.

        Built from the seed of the training: what its constructor draws and no state dict holds,
        such as random features in a plain attribute, is what the weights were trained with.
        """
        section = ModelSection.model_validate(self.config["model"])
        with randomness_kept():
            seed_everything(self.seed, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
            network = build_network(section, self.row_shapes, self.num_outputs)
        load_weights(network, self.weights, self.buffers)
        return network.eval()

    def build_study(self) -> StudyNetwork:
        """Return the network with its heads, in evaluation mode."""
        unit = self.config.get("regression", {}).get("range") == "unit"
        head = self.config["model"].get("head", "auto")
        return StudyNetwork(self.build(), head, *heads_from(self.heads, unit)).eval()


def is_model_file(values: Any) -> bool:
    """Tell whether these are the parts of a model file; earlier ones have no ``buffers``."""
    names = {item.name for item in fields(ModelFile)}
    return isinstance(values, dict) and set(values) | {"buffers"} == names


def load_model_file(path: Path) -> ModelFile:
    """Read a model file. No code in it can run (``weights_only``).

    Raises:
        CheckpointError: It is absent, truncated, altered, or no model file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if not is_intact(content):
        raise CheckpointError(
            f"{path}: truncated or altered (its digest does not fit); train the run again, or copy"
            " the file anew"
        )
    try:
        values = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception:  # intact, and yet not ours: nothing in it has run
        values = None
    if not is_model_file(values):
        raise CheckpointError(f"{path}: no model file of this version of outlast")
    return ModelFile(**values)
