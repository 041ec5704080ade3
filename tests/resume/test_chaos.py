"""The law of resume: any number of kills, at any instants, change nothing but the time."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos import CONFIGS, ONCE, PAIRS, Chaos
from killing import Run, assert_same

from outlast.faults import POINTS
from outlast.train.clipping import WINDOW

SLICE = [("dropout", 1), ("dropout", 2), ("study", 1), ("study", 2)]


@pytest.mark.parametrize(("config", "world_size"), SLICE)
def test_a_slice_of_chaos(config: str, world_size: int, tmp_path: Path) -> None:
    """A few kills of each; the whole has ``make chaos``."""
    rage(tmp_path, [(config, world_size)], kills=3, seed=world_size)
    if config == "study":
        straight = tmp_path / f"straight-study-{world_size}" / "run" / "history.json"
        epochs = len(json.loads(straight.read_text())["epoch"])
        assert epochs * 13 > WINDOW, "or the clip window was never full"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # most of the time is start-up
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("world_size", "kills"), [(1, 8), (2, 6), (3, 3)])
def test_fifty_kills(config: str, world_size: int, kills: int, tmp_path: Path) -> None:
    """Over all configs and numbers of ranks, 51 of them; ``make chaos`` has as many as asked."""
    rage(tmp_path, [(config, world_size)], kills, seed=100 + world_size)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_hundred_kills(tmp_path: Path) -> None:
    """The whole schedule of ``make chaos``, on 1, 2 and 3 ranks."""
    rage(tmp_path, PAIRS, kills=200, seed=0, jobs=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_at_every_named_instant(
    data: Path, undisturbed: Callable[[int], Path], tmp_path: Path
) -> None:
    """One run dies once at each point, in the order in which an attempt passes them."""
    run = Run(tmp_path / "run", data, world_size=2, every_seconds=0)
    # what a run passes three times at most comes too late the second time
    at_once = ONCE - {"beat"} | {"validation", "epoch"}
    for point in POINTS:
        at = 1 if point in at_once else 2
        run.environment = {
            "OUTLAST_FAULT": f"point={point} at={at} do=SIGKILL to=all",
            "OUTLAST_CLAIM_EXPIRES_S": "6" if point == "beat" else "120",  # a beat each second
        }
        run.wait_s = 1.0 if point == "beat" else 0.02
        assert run.start().wait(120) == -signal.SIGKILL, f"{point} was not passed"
    run.environment = {}
    run.finish()
    assert_same(run.folder, undisturbed(2))


def rage(folder: Path, pairs: list[tuple[str, int]], kills: int, seed: int, jobs: int = 1) -> None:
    """Let chaos rage; fail with what is needed to repeat it."""
    chaos = Chaos(folder, pairs)
    chaos.rage(kills, seed, jobs)
    assert not chaos.problems, "\n\n".join(chaos.problems)
    assert chaos.killed >= kills
