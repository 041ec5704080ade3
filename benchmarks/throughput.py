"""Samples per second of the Trainer against a bare PyTorch loop; size and time of a save.

    python benchmarks/throughput.py

Both train the network and the batches of the default experiment, on one CPU thread, in one
process, in alternation: the ratio means something where the machine's speed does not. The bare
loop has its arrays in memory and does nothing but train: no metrics, no seeding, no saving.
"""

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from outlast.config import parse, read_yaml
from outlast.data.dataset import DataSet
from outlast.data.sampling import batch_of, epoch_order, num_steps
from outlast.data.store import open_data, prepare
from outlast.model.build import build_network
from outlast.model.seeding import seed_everything
from outlast.objective.build import build_objective
from outlast.train.checkpoint import MODEL_RESUME, Checkpoints
from outlast.train.run import build_optimizer
from outlast.train.trainer import Trainer

CONFIG = Path(__file__).parents[1] / "config/config.yaml"


def make_trainer(data: DataSet, batch_size: int, folder: Path) -> Trainer:
    """Return a trainer of the default experiment, with initial weights that depend on nothing."""
    content = read_yaml(CONFIG)
    content["training"]["batch_size"] = batch_size
    config = parse(content)
    seed_everything(0, torch.device("cpu"))
    objective = build_objective(config, data)
    model = build_network(config.model, data.row_shapes, objective.num_outputs)
    return Trainer(
        model=model,
        data=data,
        objective=objective,
        optimizer=build_optimizer(config.training, model),
        config=config,
        folder=folder,
    )


class BareLoop:
    """What one would write by hand."""

    def __init__(self, trainer: Trainer) -> None:
        """Take the same network, and normalized copies of the arrays."""
        data = trainer.data
        self.model, self.config = trainer.model, trainer.config
        self.optimizer = build_optimizer(self.config.training, self.model)
        (array,) = data.inputs.values()
        self.inputs = data.normalization([torch.from_numpy(array.copy()).float()])[0]
        self.label, self.rows = torch.from_numpy(data.label.copy()), data.splits["train"]
        self.epoch = 0

    def train_epoch(self) -> None:
        """Train one epoch on the batches of the trainer."""
        batch_size = self.config.training.batch_size
        order = epoch_order(self.rows, self.config.training.seed, self.epoch)
        self.model.train()
        for step in range(num_steps(len(order), batch_size)):
            index = torch.from_numpy(batch_of(order, step, batch_size))
            self.optimizer.zero_grad()
            logits = self.model(self.inputs[index])
            functional.cross_entropy(logits, self.label[index]).backward()
            self.optimizer.step()
        self.epoch += 1


def compare(data: DataSet, batch_size: int, epochs: int, folder: Path) -> list[float]:
    """Return the median samples/s of the trainer and of the bare loop, and their median ratio.

    The ratio of neighbouring epochs: the speed of the machine changes more slowly than that.
    """
    trainer = make_trainer(data, batch_size, folder)
    bare = BareLoop(make_trainer(data, batch_size, folder))
    seconds: dict[str, list[float]] = {"trainer": [], "bare": []}
    for _ in range(epochs):
        for name, train_epoch in (("trainer", trainer.train_epoch), ("bare", bare.train_epoch)):
            started = time.perf_counter()
            train_epoch()
            seconds[name].append(time.perf_counter() - started)
    rows = len(data.splits["train"])
    ours, bare_s = (values[2:] for values in seconds.values())
    ratios = [theirs / own for own, theirs in zip(ours, bare_s, strict=True)]
    speeds = [rows / statistics.median(values) for values in (ours, bare_s)]
    return [*speeds, statistics.median(ratios)]


def measure_save(data: DataSet, folder: Path) -> tuple[int, float]:
    """Return the bytes of model_resume.pt and the median seconds of a save, after one epoch."""
    trainer = make_trainer(data, 64, folder)
    trainer.train(1)
    checkpoints, seconds = Checkpoints(folder), []
    for _ in range(30):
        started = time.perf_counter()
        checkpoints.save(trainer.run.capture(trainer.recipe))
        seconds.append(time.perf_counter() - started)
    return (folder / MODEL_RESUME).stat().st_size, statistics.median(seconds)


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40, help="epochs of each, alternating")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("outlast").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(parse(read_yaml(CONFIG)).data, folder / "data")
        data = open_data(folder / "data")
        for batch_size in options.batch_sizes:
            ours, bare, ratio = compare(data, batch_size, options.epochs, folder)
            print(
                f"batch {batch_size}: trainer {ours:,.0f} samples/s, bare loop {bare:,.0f},"
                f" ratio {ratio:.2f}"
            )
        size, seconds = measure_save(data, folder)
        print(f"model_resume.pt: {size / 1000:.0f} kB, saved in {seconds * 1000:.1f} ms")


if __name__ == "__main__":
    main()
