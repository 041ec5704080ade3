"""What a save costs training: its stall, the write beside it, and the share of the time.

    python benchmarks/saving.py

Trains a wide network: the same number of steps with one save beside them and without, in turns.
The extra seconds, over the mean of the turns before and after, are the stall and what the writing
thread takes from processor and memory.
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


def train_for(trainer: Trainer, steps: int) -> float:
    """Take so many steps; return the seconds."""
    rows = trainer.data.splits["train"][:32]
    started = time.perf_counter()
    for _ in range(steps):
        trainer._train_step(rows)
    return time.perf_counter() - started


def measure(megabytes: int, seconds: float, folder: Path) -> None:
    """Print stall, write and lost seconds of one save, from about so many seconds of training."""
    trainer = make_trainer(megabytes, folder)
    writer = trainer._keeper._writer
    step = train_for(trainer, 20) / 20
    for _ in range(3):  # the first ones do other things, until a file takes the place of another
        started = time.perf_counter()
        trainer._keeper.save()
        writer.drain()
    # long enough for a write beside it, and short against what else the machine does
    steps = max(10, int(max(0.3, 1.5 * (time.perf_counter() - started)) / step))
    stalls, writes, lost, before = [], [], [], train_for(trainer, steps)
    for _ in range(max(5, int(seconds / (2 * steps * step)))):
        started = time.perf_counter()
        trainer._keeper.save()
        stalls.append(time.perf_counter() - started)
        beside = stalls[-1] + train_for(trainer, steps)
        assert not writer.is_busy, "the steps are to outlast the write"
        trainer._keeper._tell(writer.reap)
        writes.append(stalls[-1] + trainer._keeper.poll._writes[-1])
        after = train_for(trainer, steps)
        lost.append(beside - (before + after) / 2)
        before = after
    size = (folder / "model_resume.pt").stat().st_size / 1e6
    stall, write, extra = (statistics.median(values) for values in (stalls, writes, lost))
    low, _, high = statistics.quantiles(lost)
    interval = CheckpointSection().every_seconds
    print(
        f"state of {size:.0f} MB: training waits {stall * 1000:.0f} ms, the file is there after"
        f" {write:.2f} s, {extra:.3f} s of training are lost ({low:.3f} to {high:.3f}, median and"
        f" quartiles of {len(lost)}): {extra / interval:.2%} at one save in {interval:.0f} s",
        flush=True,
    )


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 500])
    parser.add_argument("--seconds", type=float, default=90, help="per size, about")
    parser.add_argument("--threads", type=int, default=1, help="of the training")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("outlast").setLevel(logging.ERROR)
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory() as name:
            measure(megabytes, options.seconds, Path(name))


if __name__ == "__main__":
    main()
