"""What each rank of a torchrun does: the same small runs on any number of ranks.

Every rank writes what it has seen to OUT/<rank>.pt; the tests compare the files.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from small_run import (
    Net,
    make_trainer,
    small_config,
    small_data,
    study_config,
    study_data,
    weights,
)

from outlast.distributed import Distributed, process_group
from outlast.objective.build import build_objective
from outlast.train.gradients import FlatGradients
from outlast.train.run import build_optimizer
from outlast.train.trainer import Trainer

# name -> rows to train, rows to validate, classes, training keys. 23 rows in batches of 11 leave
# one row; 2 or 3 ranks divide neither batch nor data.
RUNS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "whole": (25, 13, 2, {"batch_size": 10}),
    "accumulated": (25, 13, 3, {"batch_size": 10, "grad_accum_split": 4}),
    "one row left": (23, 7, 2, {"batch_size": 11, "grad_accum_split": 2}),
    "one row to validate": (9, 1, 4, {"batch_size": 4}),
}


# the same with heads, label noise, class weights and clipping; parts of the accumulation
STUDIES = {"study whole": (25, 13, 1), "study in parts": (23, 7, 3)}


class NormNet(nn.Module):
    """A network with running statistics of several dtypes; one is a new tensor after each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, 1)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("slow", torch.zeros(6, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(6, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(6, dtype=torch.bool))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.body(rows)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
            self.slow += 0.01 * hidden.detach().double().mean(0)
            self.counts += (hidden.detach() > self.mean).sum(0)
            self.seen |= hidden.detach().amax(0) > 1
        scale = 1 / (1 + self.counts / 100) + self.seen.float()
        return self.head((hidden - self.mean - self.slow.to(hidden.dtype)) * scale)


def record_rows(trainer: Trainer) -> list[list[int]]:
    """Note the rows that this rank trains on, by epoch."""
    read, step, epochs, steps = trainer._reader.read, trainer._train_step, [], []

    def stepping(rows: Any) -> None:
        steps.append(rows)
        step(rows)
        steps.pop()

    def noted(rows: Any) -> Any:
        if steps:  # not when one row is tried
            while len(epochs) <= trainer.run.position.epoch:
                epochs.append([])
            epochs[trainer.run.position.epoch].extend(rows.tolist())
        return read(rows)

    trainer._reader.read = noted  # type: ignore[method-assign]
    trainer._train_step = stepping  # type: ignore[method-assign]
    return epochs


def train(folder: Path, ranks: Distributed) -> dict[str, Any]:
    """Train every run in both precisions; return weights, numbers and rows."""
    results = {}
    for name, (train_rows, validation, classes, keys) in RUNS.items():
        for dtype in (torch.float32, torch.float64):
            place = folder / f"{name} {dtype}"
            trainer = make_trainer(
                place,
                small_data(train_rows, validation, classes),
                dtype=dtype,
                distributed=ranks,
                optimizer="sgd",
                learning_rate=0.2,
                **keys,
            )
            rows = record_rows(trainer)
            history = trainer.train(3, 0)
            results[f"{name} {dtype}"] = {
                "weights": weights(trainer),
                "history": history,
                "rows": rows,
                "validation": trainer.validate(),
            }
    return results


def study(folder: Path, ranks: Distributed) -> dict[str, Any]:
    """Train every study in both precisions; return weights and numbers."""
    results = {}
    for name, (train_rows, validation, parts) in STUDIES.items():
        for dtype in (torch.float32, torch.float64):
            config = study_config(batch_size=10, grad_accum_split=parts, optimizer="sgd")
            data = study_data(train_rows, validation)
            trainer = make_trainer(
                folder / f"{name} {dtype}", data, config, dtype=dtype, distributed=ranks
            )
            trainer._train_step(data.splits["train"][:10])
            gradient = torch.cat(trainer._step.gradients.flats).clone()
            trainer = make_trainer(
                folder / f"{name} {dtype}", data, config, dtype=dtype, distributed=ranks
            )
            history = trainer.train(3, 0)
            results[f"{name} {dtype}"] = {
                "weights": weights(trainer),
                "history": history,
                "gradient": gradient,
            }
    return results


def dropout(folder: Path, ranks: Distributed) -> list[list[float]]:
    """Return the dropout mask of the first row of each step on this rank."""
    trainer = make_trainer(folder / "dropout", dropout=0.5, distributed=ranks, batch_size=10)
    trainer.train_epoch()
    assert isinstance(trainer.model, Net)
    return [mask[0].tolist() for mask in trainer.model.masks]


def batch_norm(folder: Path, ranks: Distributed) -> dict[str, Any]:
    """Return the buffers of this rank before and after each step."""
    data, config = small_data(train=24), small_config(batch_size=12)
    objective = build_objective(config, data)
    torch.manual_seed(0)
    model = NormNet()
    (folder / "norm").mkdir(exist_ok=True)
    trainer = Trainer(
        model=model,
        data=data,
        objective=objective,
        optimizer=build_optimizer(config.training, model),
        config=config,
        folder=folder / "norm",
        distributed=ranks,
    )
    own, reduced, reduce = [], [], trainer._step.gradients.reduce

    def read() -> torch.Tensor:
        """What forward() reads, which the counter of batches is not."""
        names = [name for name, _ in model.named_buffers() if "num_batches" not in name]
        return torch.cat([model.get_buffer(name).double().flatten() for name in names])

    def noted() -> None:
        own.append(read())
        reduce()
        reduced.append(read())

    trainer._step.gradients.reduce = noted  # type: ignore[method-assign]
    trainer.train_epoch()
    trainer.validate()
    counters = [int(model.body[1].num_batches_tracked)]
    return {"own": own, "reduced": reduced, "counters": counters, "weights": weights(trainer)}


class OddBuffers(nn.Module):
    """Buffers of dtypes that no backend adds up, with numbers of this rank; one is sparse."""

    DTYPES = ("bool", "int16", "uint16", "uint32", "complex64", "float8_e4m3fn", "float64", "int64")

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        for name in self.DTYPES:
            values = torch.tensor([0.0, -1.0 if "uint" not in name else 1.0, 3.0]) * (rank + 1)
            self.register_buffer(name, values.to(getattr(torch, name)))
            self.register_buffer(f"one_{name}", values[2].to(getattr(torch, name)))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("rows", torch.eye(3).to_sparse_csr())


def odd_buffers(ranks: Distributed) -> dict[str, Any]:
    """Return those buffers after a step, as plain numbers, and how often rank 0's."""
    found = {}
    for way in ("reduce", "sync_buffers"):
        model = OddBuffers(ranks.rank)
        getattr(FlatGradients(model, ranks), way)()
        found[way] = {
            name: buffer.to_dense().to(torch.complex128).tolist()
            for name, buffer in model.named_buffers()
        }
    return found


def collectives(ranks: Distributed) -> dict[str, Any]:
    """Return what the small collectives give for unequal and empty shares."""
    gathered = []
    for shape in ((), (3,), (2, 2)):
        for sizes in ([4, 0, 1], [0, 0, 2], [0, 0, 0], [1, 2, 3]):
            sizes = sizes[: ranks.world_size]
            rows = torch.full((sizes[ranks.rank], *shape), float(ranks.rank), dtype=torch.float64)
            gathered.append(ranks.gather_rows(rows, sizes))
    return {
        "rows": gathered,
        "integers": ranks.gather_rows(torch.arange(ranks.rank), list(range(ranks.world_size))),
        "gather": ranks.gather({"rank": ranks.rank}),
        "broadcast": ranks.broadcast(f"from {ranks.rank}"),
        "sum": ranks.sum_(torch.tensor([1.0, ranks.rank])).tolist(),
    }


def resumed(folder: Path, ranks: Distributed) -> dict[str, Any]:
    """Stop on a signal that only the last rank got; go on with new objects."""
    from outlast.errors import InterruptedRunError

    def new(name: str) -> Trainer:
        config = study_config(0, epochs=3)
        data = study_data()
        return make_trainer(folder / name, data, config, dropout=0.3, distributed=ranks)

    straight, first = new("straight"), new("stopped")
    straight.train(3)
    message = ""
    advance, steps = first._train_step, []

    def stepping(order: Any) -> None:
        advance(order)
        steps.append(1)
        if len(steps) == 6 and ranks.rank == ranks.world_size - 1:
            first._keeper.poll._interrupt._note(15)

    first._train_step = stepping  # type: ignore[method-assign]
    try:
        first.train(3)
    except InterruptedRunError as error:
        message = str(error)
    second = new("stopped")
    second.train(3)
    return {
        "message": message,
        "steps": len(steps),
        "straight": weights(straight),
        "second": weights(second),
        "sums": [
            {key: run.run.history.column(key) for key in ("train_loss", "train_acc", "val_loss")}
            for run in (straight, second)
        ],
    }


def count_rows(module: nn.Module, _: Any, outputs: Any) -> Any:
    """A hook that counts the rows that a network is evaluated on, and adds what it has counted."""
    if module.training or len(outputs) < 2:  # no trial at the start
        return outputs
    module.rows += len(outputs)
    return outputs + 0.01 * module.rows


def resumed_in_validation(folder: Path, ranks: Distributed, counts: bool) -> dict[str, Any]:
    """Stop all behind the second batch of the first validation; go on with new objects."""
    from outlast.errors import InterruptedRunError

    batches: list[int] = []

    def new(name: str) -> Trainer:
        data, config = study_data(validation=49), study_config(0, epochs=2)
        name = f"{name} {counts}"
        trainer = make_trainer(folder / name, data, config, dropout=0.3, distributed=ranks)
        if counts:
            trainer.model.register_buffer("rows", torch.zeros(()))
            trainer.model.register_forward_hook(count_rows)
        real = trainer._keeper.at_boundary

        def at_boundary(num_steps: int) -> None:
            if trainer.run.validated.steps:
                batches.append(1)
            if name.startswith("stopped") and len(batches) == 2 and ranks.rank == 0:
                trainer._keeper.poll._interrupt._note(15)
            real(num_steps)

        trainer._keeper.at_boundary = at_boundary  # type: ignore[method-assign]
        return trainer

    straight, first = new("straight"), new("stopped")
    straight.train(2)
    expected = len(batches)
    batches.clear()
    try:
        first.train(2)
    except InterruptedRunError as error:
        message = str(error)
    second = new("stopped")
    second.train(2)
    return {
        "message": message,
        "batches": (len(batches), expected),
        "weights": (weights(second), weights(straight)),
        "history": [run.run.history.column("val_loss") for run in (second, straight)],
    }


def main() -> None:
    """Do everything, and write it down."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with process_group("cpu") as ranks:
        assert ranks.world_size == int(os.environ["WORLD_SIZE"])
        result = {
            "train": train(folder, ranks),
            "study": study(folder, ranks),
            "dropout": dropout(folder, ranks),
            "batch_norm": batch_norm(folder, ranks),
            "collectives": collectives(ranks),
            "odd_buffers": odd_buffers(ranks),
            "resumed": resumed(folder, ranks),
            "in validation": resumed_in_validation(folder, ranks, counts=False),
            "in a validation that counts": resumed_in_validation(folder, ranks, counts=True),
        }
        torch.save(result, folder / f"{ranks.rank}.pt")


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
