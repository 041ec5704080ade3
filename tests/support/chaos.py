"""Chaos: runs that are killed, paused and starved at random, again and again, until they are done.

    make chaos KILLS=1000 SEED=7

A *life* is one run folder from its first attempt to its declared outputs. Each attempt meets one
blow of a seeded schedule. At the end of a life the bits must be those of the undisturbed run.
"""

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from killing import BIN, STUDY, Run, assert_same, run_config
from rich.console import Console
from rich.table import Table

from outlast.faults import POINTS

KILLS_PER_LIFE = 8
PATIENCE_S = 180  # an attempt that takes longer hangs
DISK = ["write", "fsync", "replace", "replaced", "previous"]
ONLY_RANK_0 = {"claim", "beat", "copied", *DISK, "outputs", "end"}
ONCE = {"import", "claim", "beat", "resume", "outputs", "end", "leave"}
IMAGES: dict[str, Any] = {
    "data": {"source": "digits", "normalize": "per_sample"},
    "model": {"network": "cnn2d", "options": {"channels": [4, 8]}},
    "training": {
        "epochs": 3,
        "batch_size": 150,
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "sampling": "balance_labels",
        "scheduler": {"name": "cosine"},
        "augment": {"jitter": 0.1, "shift": 1},
        "max_grad_norm": 1.0,
    },
}
CONFIGS = {"dropout": run_config(), "study": STUDY, "images": IMAGES}
PAIRS = [(config, world_size) for world_size in (1, 2, 3) for config in CONFIGS]


@dataclass(frozen=True)
class Blow:
    """What one attempt meets.

    Attributes:
        kind: Its name in the summary.
        fault: Value of OUTLAST_FAULT.
        after_s: SIGKILL from outside so long after the launch, of everything; None: not so.
    """

    kind: str
    fault: str = ""
    after_s: float | None = None

    def __str__(self) -> str:
        if self.after_s is None:
            return f'OUTLAST_FAULT="{self.fault}"'
        return f"SIGKILL of all {self.after_s:.2f} s after the launch"


def draw(dice: random.Random, world_size: int) -> Blow:
    """Draw the blow of one attempt."""
    style = dice.choices(["kill", "ask", "pause", "error", "clock"], [50, 20, 10, 10, 10])[0]
    if style == "clock":
        return Blow("SIGKILL of all, any time", after_s=dice.uniform(0.0, 7.0))
    point = dice.choice(list(POINTS))
    where = _where(dice, point, world_size)
    to = dice.choice(["rank", "torchrun", "all"])
    kill = f"point={point} {where} do=SIGKILL to={to}"
    if style == "kill":
        return Blow(f"SIGKILL of {_NAMES[to]}", kill)
    if style == "ask":
        name = dice.choice(["SIGTERM", "SIGTERM", "SIGINT", "SIGUSR1"])
        return Blow(f"{name} to {_NAMES[to]}", f"point={point} {where} do={name} to={to}")
    other = dice.choice(list(POINTS))
    before = f"point={other} {_where(dice, other, world_size)}"
    if style == "pause":
        seconds = dice.uniform(0.2, 2.0)
        return Blow(
            "SIGSTOP, then SIGKILL", f"{before} do=SIGSTOP to={to} for={seconds:.1f}; {kill}"
        )
    name = dice.choice(["ENOSPC", "EIO", "EROFS", "sleep"])
    place = dice.choice(DISK)
    times = dice.randint(1, 6)
    fault = f"point={place} at={dice.randint(1, 12)} times={times} do={name} for=0.3; {kill}"
    return Blow("failing disk, then SIGKILL", fault)


_NAMES = {"rank": "one rank", "torchrun": "torchrun only", "all": "all"}


def _where(dice: random.Random, point: str, world_size: int) -> str:
    at = 1 if point in ONCE else dice.randint(1, 5)  # of an attempt, which goes on from anywhere
    rank = 0 if point in ONLY_RANK_0 else dice.randrange(world_size)
    return f"at={at} rank={rank}"


@dataclass
class Tally:
    """What the attempts of one kind of blow have cost."""

    kills: int = 0
    missed: int = 0  # the attempt had finished before
    lost_steps: list[int] = field(default_factory=list)
    to_first_step_s: list[float] = field(default_factory=list)


@dataclass
class Life:
    """One run, from its first attempt to its outputs."""

    config: str
    run: Run
    seed: int
    blows: list[Blow] = field(default_factory=list)

    def live(self, kills: int, tally: dict[str, Tally]) -> int:
        """Let the run be killed up to so often, then finish it; return how often it was.

        Raises:
            AssertionError: An attempt hangs, or has not the outcome that it must have.
        """
        dice, killed = random.Random(self.seed), 0
        self.run.every_seconds = dice.choice([0.0, 0.1, 0.5])
        while killed < kills:
            blow = draw(dice, self.run.world_size)
            self.blows.append(blow)
            if self._suffer(blow, tally[blow.kind], in_a_hurry=dice.random() < 0.5):
                tally[blow.kind].missed += 1
                break
            tally[blow.kind].kills += 1
            killed += 1
        self.run.environment = {}
        self.run.finish(PATIENCE_S)
        return killed

    def _suffer(self, blow: Blow, tally: Tally, in_a_hurry: bool) -> bool:
        """Make an attempt and deal the blow; tell whether the attempt has finished."""
        run, before = self.run, self._steps_kept()
        run.environment = {"OUTLAST_FAULT": blow.fault, "OUTLAST_CLAIM_EXPIRES_S": "6"}
        started = time.time()
        if blow.after_s is None:
            code = run.start().wait(PATIENCE_S)
        else:
            code = -signal.SIGKILL if run.kill_when(lambda: True, blow.after_s) else 0
        times = run.training_times()
        if times:
            tally.to_first_step_s.append(times[0] - started)
        if code != 0 and in_a_hurry:  # as Snakemake is: orphans may still be there
            return False
        self._wait_for_orphans()
        parts = self.run.config["training"].get("grad_accum_split", 1)
        if code != 0 and times:
            kept = self._steps_kept() - before
            tally.lost_steps.append(max(0, len(times) // parts - kept))
        return code == 0

    def _wait_for_orphans(self) -> None:
        deadline = time.monotonic() + 15
        while left := list(self._processes()):
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)

    def _processes(self) -> Iterable[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if str(self.run.folder) in process.cmdline():
                    yield process
            except psutil.Error:
                continue

    def _steps_kept(self) -> int:
        """Return how many steps the state on the disk has behind it."""
        path = self.run.folder / "model_resume.pt"
        if not path.exists():
            return 0
        state = torch.load(path, weights_only=True)
        size = self.run.config["training"]["batch_size"]
        return int(state["epoch"] * -(-self._train_rows // size) + state["step"])

    @property
    def _train_rows(self) -> int:
        manifest = json.loads((self.run.data / "manifest.json").read_text())
        return int(sum(manifest["counts"]["train"].values()))

    def check(self, undisturbed: Path) -> None:
        """Compare with the undisturbed run, and look for what no kill may leave."""
        assert_same(self.run.folder, undisturbed)
        assert not self.run.temporaries(), "leftovers"
        assert "Traceback" not in self.run.log, "a traceback"
        for word in ("truncated", "damaged", "starting fresh"):
            assert word not in self.run.log, f"{word}: no kill may spoil a state"


class Chaos:
    """Many lives, and what they have shown."""

    def __init__(self, folder: Path, pairs: Sequence[tuple[str, int]] = PAIRS) -> None:
        """Prepare the data of each config under ``folder``; ``pairs``: configs and ranks."""
        self.folder, self.pairs = folder, pairs
        self.tally: dict[str, Tally] = defaultdict(Tally)
        self.killed = self.lives = 0
        self.problems: list[str] = []
        for name in dict.fromkeys(config for config, _ in pairs):
            command = [BIN / "outlast", "prepare", "--config", json.dumps(CONFIGS[name])]
            subprocess.run([*command, "--out", self._data(name)], check=True, capture_output=True)

    def _data(self, config: str) -> Path:
        return self.folder / f"data-{config}"

    def _run(self, config: str, world_size: int, name: str) -> Run:
        wait_s = 0.005 if config == "study" else 0.04
        folder = self.folder / name / "run"
        return Run(folder, self._data(config), CONFIGS[config], world_size, wait_s=wait_s)

    def rage(self, kills: int, seed: int = 0, jobs: int = 1) -> None:
        """Live until there were so many kills, or one of them has changed something."""
        with ThreadPoolExecutor(jobs) as pool:
            straight = {
                (config, ranks): self._run(config, ranks, f"straight-{config}-{ranks}")
                for config, ranks in self.pairs
            }
            list(pool.map(lambda run: run.finish(PATIENCE_S), straight.values()))
            while self.killed < kills and not self.problems:
                lives = [self._next_life(seed) for _ in range(jobs)]
                share = min(KILLS_PER_LIFE, -(-(kills - self.killed) // jobs))
                references = [straight[life.config, life.run.world_size].folder for life in lives]
                self.killed += sum(pool.map(self._live, lives, references, [share] * jobs))

    def _next_life(self, seed: int) -> Life:
        config, world_size = self.pairs[self.lives % len(self.pairs)]
        run = self._run(config, world_size, f"life-{self.lives}")
        self.lives += 1
        return Life(config, run, seed * 100_000 + self.lives)

    def _live(self, life: Life, reference: Path, kills: int) -> int:
        try:
            killed = life.live(kills, self.tally)
            life.check(reference)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self._blame(life, error)
            return 0
        shutil.rmtree(life.run.folder.parent)
        return killed

    def _blame(self, life: Life, error: Exception) -> None:
        blows = "\n".join(f"  {index}: {blow}" for index, blow in enumerate(life.blows, 1))
        self.problems.append(
            f"{life.config} on {life.run.world_size} ranks, seed {life.seed}, checkpoint every"
            f" {life.run.every_seconds} s, {life.run.folder}:\n{error}\nits attempts met:\n{blows}"
        )

    def table(self) -> Table:
        """Return the summary: one row for each kind of blow."""
        table = Table(title=f"{self.killed} kills in {self.lives} runs")
        table.add_column("kind")
        for name in ("kills", "finished before", "steps lost: median", "most", "s to 1st step"):
            table.add_column(name, justify="right")
        for kind, tally in sorted(self.tally.items()):
            lost, started = tally.lost_steps, tally.to_first_step_s
            table.add_row(
                kind,
                str(tally.kills),
                str(tally.missed),
                f"{statistics.median(lost):.0f}" if lost else "-",
                str(max(lost)) if lost else "-",
                f"{statistics.median(started):.1f}" if started else "-",
            )
        return table


def main() -> int:
    """Run as long as asked, and print what has been seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="outlast-chaos-"))
    chaos = Chaos(folder)
    started = time.monotonic()
    chaos.rage(options.kills, options.seed, options.jobs)
    console = Console(width=100)
    console.print(chaos.table())
    for problem in chaos.problems:
        console.print(problem, markup=False)
    if chaos.problems:
        return 1
    minutes = (time.monotonic() - started) / 60
    console.print(f"{minutes:.1f} minutes; each run ended with the bits of the undisturbed one")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
