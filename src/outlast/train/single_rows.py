"""Some networks cannot work on one row. Found out before the first step, not at the last.

An epoch's last batch is as small as what is left; its shares and parts are smaller still.
"""

import contextlib
import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from outlast.data.batches import EVALUATED_AT_ONCE, BatchReader
from outlast.data.dataset import DataSet
from outlast.data.sampling import Rows, cut, num_steps
from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.model.copies import copied
from outlast.model.precision import autocast
from outlast.model.weights import load_weights, transient_buffers
from outlast.sections import Config


def refuse_single_rows(
    model: nn.Module, reader: BatchReader, data: DataSet, config: Config, ranks: Distributed
) -> None:
    """Try one row on a copy of the network, if one row will come.

    Raises:
        ModelError: It cannot train on one row, or be evaluated. The same on every rank.
    """
    trains, evaluates = _trains_one(data, config, ranks), _evaluates_one(data, config, ranks)
    if not trains and not evaluates:
        return
    # a hook or closure may lead from the copy to the network itself
    before = copied((model.state_dict(), transient_buffers(model)))
    rows, section = data.splits["train"], config.training

    def failure(training: bool) -> Exception | None:
        def error_with(count: int) -> Exception | None:
            inputs = reader.read(rows[:count]).inputs
            with autocast(section.precision, ranks.device):
                return _error(model, inputs, training)

        error = error_with(1)
        return error if error and not error_with(2) else None

    try:
        error = failure(training=True) if trains else None
        if error:
            raise ModelError(
                f"model: {_name(error)} cannot train on one row ({error}), and {len(rows)} rows in"
                f" batches of {section.batch_size} on {ranks.world_size} rank(s) in"
                f" {section.grad_accum_split} part(s) end in such a piece: change"
                " training.batch_size, training.grad_accum_split or launch.processes, or use"
                " LayerNorm or GroupNorm for batch normalization, squeeze(1) for squeeze()"
            ) from error
        error = failure(training=False) if evaluates else None
        if error:
            raise ModelError(
                f"model: the network cannot predict one row alone ({error}), and the validation or"
                " test split ends in a batch of one: write its forward() for any number of rows,"
                " as with squeeze(1) or flatten(1) for squeeze()"
            ) from error
    finally:
        with contextlib.suppress(Exception):  # what cannot be loaded is refused elsewhere
            load_weights(model, *before)


def _trains_one(data: DataSet, config: Config, ranks: Distributed) -> bool:
    if ranks.device.type == "cuda" and ranks.world_size > 1:
        return False  # SyncBatchNorm counts the rows of all ranks, and waits for them
    parts = config.training.grad_accum_split
    return 1 in [
        len(cut(cut(batch, ranks.world_size, rank), parts, part))
        for batch in _sizes(data.splits["train"], config.training.batch_size)
        for rank in range(ranks.world_size)
        for part in range(parts)
    ]


def _evaluates_one(data: DataSet, config: Config, ranks: Distributed) -> bool:
    validation = data.splits["validation"]
    shares = [cut(validation, ranks.world_size, rank) for rank in range(ranks.world_size)]
    batches = [batch for share in shares for batch in _sizes(share, config.training.batch_size)]
    tested = data.splits["test"]
    batches += _sizes(tested if len(tested) else validation, EVALUATED_AT_ONCE)
    return 1 in map(len, batches)


def _sizes(rows: Rows, batch_size: int) -> Iterable[Rows]:
    """Return the first batch and the last: no other size comes between."""
    return rows[:batch_size], rows[max(0, num_steps(len(rows), batch_size) - 1) * batch_size :]


def _error(model: nn.Module, inputs: list[torch.Tensor], training: bool) -> Exception | None:
    """Return what goes wrong on a copy."""
    try:
        network = copy.deepcopy(model, _memo(model)).train(training)
    except Exception:  # there are objects that cannot be copied
        return None
    try:
        with torch.set_grad_enabled(training):
            network(*inputs)
    except torch.OutOfMemoryError:
        return None
    except Exception as error:
        return error
    return None


def _memo(model: nn.Module) -> dict[int, Any]:
    """Return copies of the plain attributes that hold a result of the network: torch makes none.

    What is mapped from a file stays there.
    """
    items = [item for module in model.modules() for item in vars(module).values()]
    mapped = {id(item): item for item in items if isinstance(item, np.memmap)}
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    return mapped | {id(item): item.detach().clone() for item in tensors}


def _name(error: Exception) -> str:
    is_norm = "more than 1 value per channel" in str(error)
    return "batch normalization" if is_norm else "the network"
