"""What a save costs training: its stall, the write beside it, and the share of the time.

    python benchmarks/saving.py

Trains a wide network, once without and once with one save in the background, in alternation. The
extra seconds are the stall, and what the writing thread takes from the processor.
"""

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from outlast.config import parse
from outlast.data.dataset import DataSet
from outlast.model.build import build_network
from outlast.objective.build import build_objective
from outlast.sections import CheckpointSection
from outlast.train.run import build_optimizer
from outlast.train.trainer import Trainer

INPUTS = 256


def make_trainer(megabytes: int, folder: Path) -> Trainer:
    """Return a trainer whose state has about so many megabytes: weights twice, two moments."""
    # inputs x width + width^2 float32 values, four times
    width = int(-INPUTS / 2 + (INPUTS**2 / 4 + megabytes * 1e6 / 16) ** 0.5)
    content = {
        "data": {"source": "memory"},
        "model": {"network": "mlp", "options": {"hidden": [width, width]}},
        "training": {"batch_size": 32},
        "checkpoint": {"every_seconds": 1e9},
    }
    config = parse(content)
    dice = np.random.default_rng(0)
    rows = dice.normal(size=(640, INPUTS)).astype(np.float32)
    data = DataSet.from_arrays({"x": rows}, np.arange(640) % 2, {"train": np.arange(640)})
    objective = build_objective(config, data)
    model = build_network(config.model, data.row_shapes, objective.num_outputs)
    optimizer = build_optimizer(config.training, model)
    trainer = Trainer(
        model=model,
        data=data,
        objective=objective,
        optimizer=optimizer,
        config=config,
        folder=folder,
    )
    trainer.train_epoch()
    trainer.run.keep_best()
    return trainer


def train_for(trainer: Trainer, seconds: float) -> tuple[int, float]:
    """Take steps for about so long; return their number and the seconds they took."""
    rows, steps = trainer.data.splits["train"][:32], 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        trainer._train_step(rows)
        steps += 1
    return steps, time.perf_counter() - started


def measure(megabytes: int, repeats: int, folder: Path) -> None:
    """Print stall, write and extra seconds of one save."""
    trainer = make_trainer(megabytes, folder)
    writer = trainer._keeper._writer
    stalls, writes, extras = [], [], []
    for _ in range(repeats):
        steps, took = train_for(trainer, 3.0)
        step = took / steps
        started = time.perf_counter()
        trainer._keeper.save()
        stalls.append(time.perf_counter() - started)
        count = 0
        while writer.is_busy or time.perf_counter() - started < 3.0:
            trainer._train_step(trainer.data.splits["train"][:32])
            count += 1
            if not writer.is_busy and len(writes) < len(stalls):
                writes.append(time.perf_counter() - started)
        extras.append(time.perf_counter() - started - count * step)
        writer.drain()
    size = (folder / "model_resume.pt").stat().st_size / 1e6
    stall, write, extra = (statistics.median(values) for values in (stalls, writes, extras))
    interval = CheckpointSection().every_seconds
    print(
        f"state of {size:.0f} MB: training waits {stall * 1000:.0f} ms, the file is there after"
        f" {write:.2f} s, {extra:.2f} s of training are lost: {extra / interval:.2%} at one save in"
        f" {interval:.0f} s"
    )


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 500])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("outlast").setLevel(logging.ERROR)
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as name:
            measure(megabytes, options.repeats, Path(name))


if __name__ == "__main__":
    main()
