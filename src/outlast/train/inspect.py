"""`outlast inspect PATH`: what a state or model file holds, without training from it."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from outlast.errors import CheckpointError
from outlast.files import is_intact
from outlast.model.file import is_model_file
from outlast.recipe import fingerprint
from outlast.train.lines import printable
from outlast.train.state import FORMAT, READABLE_FORMATS

FOREIGN = "neither a state nor a model of this version of outlast"


def show_file(path: Path) -> None:
    """Print a file: digest, kind, place in the run, best epoch, recipe, bytes of each part.

    No code in it can run (``weights_only``).

    Raises:
        CheckpointError: It cannot be read, or is no file of outlast.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    good = is_intact(content)
    print(f"{'file':<12}{path}, {len(content):,} bytes")
    print(f"{'digest':<12}{'good' if good else 'BAD: truncated or altered, never trained from'}")
    try:
        values = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{path}: no tensors and plain values can be read from it") from error
    try:
        lines = list(_lines(path, values))
    except CheckpointError:
        raise
    except Exception as error:  # it has our keys, and somebody else's values
        raise CheckpointError(f"{path}: {FOREIGN}") from error
    for word, text in lines:
        print(f"{word:<12}{printable(text)}")


def _lines(path: Path, values: Any) -> Iterator[tuple[str, str]]:
    keys = set(values) if isinstance(values, dict) else set()
    if is_model_file(values):
        yield from _of_model(values)
    elif {"format", "recipe", "optimizer"} <= keys and isinstance(values["format"], int):
        if values["format"] not in READABLE_FORMATS:
            raise CheckpointError(
                f"{path}: a state of format {values['format']}, and this version of outlast reads"
                f" format {FORMAT}"
            )
        yield from _of_state(values)
    else:
        raise CheckpointError(f"{path}: {FOREIGN}")
    for name, value in values.items():
        if size := _bytes_of(value):
            yield "size", f"{name}: {size:,} bytes of tensors"


def _of_state(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "kind", f"state of a run, format {values['format']}"
    place = f"{values['epoch']} epochs finished, and {values['step']} steps"
    if validation := values.get("validation"):
        place += f", and {validation['steps']} batches of validation"
    yield "place", place
    selection = values["selection"]
    if selection["best_epoch"]:
        stalled = selection["epochs_since_best"]
        yield (
            "best",
            f"epoch {selection['best_epoch']}, {values['recipe']['training.selection_metric']}"
            f" {selection['best_value']:.6g}; {stalled} epochs since",
        )
    yield "ranks", str(len(values["sums"]))
    yield "fingerprint", fingerprint(values["recipe"])
    for key, value in values["recipe"].items():
        yield "recipe", f"{key}: {value}"


def _of_model(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "kind", "best model of a run"
    best = values["best"].items()
    yield "best", ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in best)
    yield "classes", ", ".join(map(str, values["classes"]))
    for name, shape in values["row_shapes"].items():
        yield "input", f"{name}: {tuple(shape)}"
    yield "versions", ", ".join(f"{key} {value}" for key, value in values["versions"].items())
    yield "fingerprint", values["fingerprint"]
    for section, keys in values["config"].items():
        yield "config", f"{section}: {keys}"


def _bytes_of(value: Any) -> int:
    """Return the bytes of the tensors in nested plain values."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    return 0
