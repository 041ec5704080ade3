"""Logits of a model file for rows of a data set."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outlast.data.batches import EVALUATED_AT_ONCE, BatchReader
from outlast.data.dataset import DataSet
from outlast.data.normalize import Normalization
from outlast.data.sampling import batch_of, num_steps, step_seed
from outlast.errors import DataError
from outlast.model.file import ModelFile
from outlast.model.precision import autocast
from outlast.model.seeding import randomness_kept, seed_everything


@dataclass(frozen=True)
class Predictions:
    """What a model says of some rows, on the CPU, float32 where nothing else is said.

    Attributes:
        logits: (N, num_outputs).
        target: (N,) float64, in the unit of ``data.target``; None without a regression head.
        representation: (N, features), what the heads have read; None without a head.
    """

    logits: Tensor
    target: Tensor | None
    representation: Tensor | None


def predict(
    model_file: ModelFile,
    data: DataSet,
    rows: np.ndarray,
    device: torch.device,
    batch_size: int = EVALUATED_AT_ONCE,
) -> Predictions:
    """Return what the model says of ``rows``, in their order.

    The inputs are scaled as they were in training, by the statistics in the model file: those of
    ``data`` would shift the rows by what makes this data set different. The network computes in
    the precision of the training, as in validation; one that draws random numbers draws the same
    each time.

    Args:
        model_file: Its network is used, in evaluation mode.
        data: Must have the inputs that the network was trained on.
        rows: int64 row numbers, shape (N,); may be empty.
        device: Where the network runs.
        batch_size: Rows per forward pass. Bounds the memory; the result does not depend on it,
            up to float rounding and random numbers.

    Raises:
        DataError: Other inputs or row shapes than in training, or logits that are not finite.
    """
    check_inputs(model_file, data)
    study = model_file.build_study().to(device)
    normalization = Normalization.from_state(model_file.normalization)
    reader = BatchReader(data, device, normalization)
    # half precision is for GPUs: on a CPU torch lacks kernels (LSTM), and has slow ones
    is_half_on_cpu = model_file.precision == "float16" and device.type == "cpu"
    precision = "float32" if is_half_on_cpu else model_file.precision
    logits = [torch.empty(0, model_file.num_outputs)]
    targets, representations = [torch.empty(0).double()], [torch.empty(0, 0)]
    with torch.inference_mode(), randomness_kept():
        for step in range(num_steps(len(rows), batch_size)):
            batch = reader.read(batch_of(rows, step, batch_size))
            seed_everything(step_seed(model_file.seed, 0, step, 0), device)
            with autocast(precision, device):
                outputs = study(*batch.inputs)
            # a binary network may give (rows,) instead of (rows, 1)
            logits.append(outputs.logits.reshape(len(batch.label), -1).float().cpu())
            if outputs.representation is not None:
                representations.append(outputs.representation.float().cpu())
            if study.regression is not None:
                target = outputs.target.float()
                targets.append(study.regression.in_unit_of_target(target).cpu())
    result = torch.cat(logits)
    _refuse_non_finite(result, rows)
    return Predictions(
        result,
        None if study.regression is None else torch.cat(targets),
        torch.cat(representations[1:]) if len(representations) > 1 else None,
    )


def check_inputs(model_file: ModelFile, data: DataSet) -> None:
    """Refuse a data set whose inputs do not fit the network, in number, name, order or shape.

    Raises:
        DataError: With the inputs of both.
    """
    wanted = [(name, list(shape)) for name, shape in model_file.row_shapes.items()]
    given = [(name, list(shape)) for name, shape in data.row_shapes.items()]
    if wanted != given:
        raise DataError(
            f"data.inputs: the model was trained on {_in_words(wanted)} (in this order), and the"
            f" data have {_in_words(given)}; prepare the data with the same data.inputs"
        )


def _in_words(shapes: list[tuple[str, list[int]]]) -> str:
    return ", ".join(f"{name} with rows of shape {tuple(shape)}" for name, shape in shapes)


def _refuse_non_finite(logits: Tensor, rows: np.ndarray) -> None:
    # argmax of NaN is a class too: without this, broken rows would count as predictions
    broken = ~logits.isfinite().all(dim=1)
    if count := int(broken.sum()):
        first = int(rows[int(broken.nonzero()[0])])
        raise DataError(
            f"the network gives NaN or infinity for {count} of {len(rows)} rows (first: row"
            f" {first}); look for missing or huge values in the inputs of these rows"
        )
