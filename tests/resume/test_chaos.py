"""Chaos: kills, pauses and failing disks at instants of every name change nothing but the time."""

from pathlib import Path

import pytest
from chaos import CONFIGS, Chaos

SLICE = [("dropout", 1), ("dropout", 2), ("study", 1), ("study", 2), ("images", 2)]


@pytest.mark.parametrize(("config", "world_size"), SLICE)
def test_a_slice_of_chaos(config: str, world_size: int, tmp_path: Path) -> None:
    """A few kills of each; the whole has ``make chaos``."""
    rage(tmp_path, [(config, world_size)], kills=3, seed=world_size)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # most of the time is start-up
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("world_size", "kills"), [(1, 32), (2, 24), (3, 12)])
def test_two_hundred_kills(config: str, world_size: int, kills: int, tmp_path: Path) -> None:
    """Over all configs and numbers of ranks, 204 kills: the bits of the undisturbed runs."""
    rage(tmp_path, [(config, world_size)], kills, seed=100 + world_size)


def rage(folder: Path, pairs: list[tuple[str, int]], kills: int, seed: int) -> None:
    """Let chaos rage; fail with what is needed to repeat it."""
    chaos = Chaos(folder, pairs)
    chaos.rage(kills, seed)
    assert not chaos.problems, "\n\n".join(chaos.problems)
    assert chaos.killed >= kills
