"""Batch normalization cannot train on one row. Found out before the first step, not at the last.

An epoch's last batch is as small as what is left; its shares and parts are smaller still.
"""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.data.sampling import cut, num_steps
from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.sections import Config


def refuse_single_rows(
    model: nn.Module, reader: BatchReader, data: DataSet, config: Config, ranks: Distributed
) -> None:
    """Try one row on a copy of the network, if it normalizes batches and one row will come.

    Raises:
        ModelError: It cannot train on one row. The same on every rank.
    """
    rows, training = data.splits["train"], config.training
    if ranks.device.type == "cuda" and ranks.world_size > 1:
        return  # SyncBatchNorm counts the rows of all ranks
    if not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return
    last = rows[(num_steps(len(rows), training.batch_size) - 1) * training.batch_size :]
    sizes = [
        len(cut(cut(batch, ranks.world_size, rank), training.grad_accum_split, part))
        for batch in (rows[: training.batch_size], last)
        for rank in range(ranks.world_size)
        for part in range(training.grad_accum_split)
    ]
    if 1 not in sizes:
        return
    tensors = (item for module in model.modules() for item in vars(module).values())
    # a plain attribute may hold a result of the network, and torch copies none
    memo = {id(item): item.detach().clone() for item in tensors if isinstance(item, torch.Tensor)}
    try:
        with torch.no_grad():
            copy.deepcopy(model, memo).train()(*reader.read(rows[:1]).inputs)
    except ValueError as error:
        raise ModelError(
            f"model: batch normalization cannot train on one row ({error}), and"
            f" {len(rows)} rows in batches of {training.batch_size} on {ranks.world_size} rank(s)"
            f" in {training.grad_accum_split} part(s) end in such a piece: change"
            " training.batch_size, training.grad_accum_split or launch.processes, or use"
            " LayerNorm or GroupNorm"
        ) from error
