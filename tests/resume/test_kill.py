"""The law of resume: any number of SIGKILLs, at any instants, change nothing but the time."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Run, assert_same, run_config

Undisturbed = Callable[[int], Path]


def kill_at_random(run: Run, kills: int, seed: int) -> int:
    """Kill ``kills`` attempts at random instants from their launch on; return how many died.

    Every second one is counted from the first training step, so that start-up, which is most of
    an attempt, does not get all of them.
    """
    dice, killed = random.Random(seed), 0
    for index in range(kills):
        from_start = index % 4 == 3
        ready = (lambda: True) if from_start else run.trains
        killed += run.kill_when(ready, dice.uniform(0.0, 4.0 if from_start else 0.5))
    return killed


@pytest.mark.parametrize(("world_size", "kills"), [(1, 6), (2, 5)])
def test_random_kills_change_nothing(
    world_size: int, kills: int, data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Killed at random again and again, a run ends with the bits of the undisturbed one."""
    run = Run(tmp_path / "run", data, world_size=world_size, wait_s=0.06)
    assert kill_at_random(run, kills, seed=world_size) >= kills - 1
    run.finish()
    assert "resumed: epoch" in run.log
    assert_same(run.folder, undisturbed(world_size))


def test_three_kills_within_one_epoch(data: Path, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The second and third resume within one epoch are as exact as the first (story 7)."""
    run = Run(tmp_path / "run", data, every_seconds=0, wait_s=0.08)
    for _ in range(3):
        assert run.kill_when(run.trains, 0.2)
    run.finish()
    resumed = [line for line in run.log.splitlines() if "resumed: epoch 1," in line]
    assert len(resumed) == 3, run.log
    assert len({line.split("after step")[1] for line in resumed}) == 3, resumed
    assert_same(run.folder, undisturbed(1))


@pytest.mark.parametrize("world_size", [1, 2])
def test_kill_during_validation(
    world_size: int, data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Killed while it validates, a run trains no step of that epoch twice."""
    run = Run(tmp_path / "run", data, world_size=world_size, every_seconds=0)
    assert run.kill_when(run.validates)
    run.finish()
    assert "resumed: epoch 1, after step 7" in run.log, run.log
    assert_same(run.folder, undisturbed(world_size))


def test_kill_during_a_checkpoint_write(data: Path, tmp_path: Path) -> None:
    """Killed between the first byte and the rename, the state before is whole and used."""
    config = run_config()
    config["model"]["options"] = {"width": 20_000}  # some 25 MB of state: a write takes a while
    straight = Run(tmp_path / "straight", data, config=config)
    straight.finish()
    run = Run(tmp_path / "run", data, config=config, every_seconds=0)
    caught = 0
    for _ in range(4):
        run.kill_when(run.kill_writer_of_state)
        caught += bool(run.temporaries())
    run.finish()
    assert caught >= 1, "no kill fell into a write"
    assert "truncated" not in run.log, "the state before is whole: nothing to set aside"
    assert not run.temporaries(), "leftovers are removed at the next start"
    assert_same(run.folder, straight.folder)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # fifty attempts, of which most of the time is start-up
@pytest.mark.parametrize(("world_size", "runs"), [(1, 5), (2, 4), (3, 2)])
def test_a_hundred_kills(
    world_size: int, runs: int, data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A hundred and ten kills over 1, 2 and 3 ranks: the same bits each time."""
    killed = 0
    for seed in range(runs):
        run = Run(tmp_path / f"run{seed}", data, world_size=world_size, wait_s=0.1)
        killed += kill_at_random(run, 10, seed=100 * world_size + seed)
        run.finish()
        assert_same(run.folder, undisturbed(world_size))
    assert killed >= 10 * runs - runs
