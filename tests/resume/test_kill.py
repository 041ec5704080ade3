"""Kills at chosen instants, seen from outside: what they lose is exactly what must be lost."""

from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Run, assert_same, run_config

Undisturbed = Callable[[int], Path]


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


@pytest.mark.slow
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
