"""The law of resume with everything switched on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from killing import STUDY, Run, assert_same
from test_kill import kill_at_random

from outlast.train.clipping import WINDOW


@pytest.mark.parametrize("world_size", [1, 2])
def test_kills_of_a_study_change_nothing(world_size: int, tmp_path: Path) -> None:
    """Heads, label noise, clip window, warm-up, plateau, bfloat16, three parts, 1 and 2 ranks."""
    data = tmp_path / "data"
    command = [sys.executable, "-m", "outlast", "prepare", "--config", json.dumps(STUDY)]
    subprocess.run([*command, "--out", data], check=True, capture_output=True)
    straight = Run(tmp_path / "straight", data, STUDY, world_size)
    straight.finish()
    run = Run(tmp_path / "run", data, STUDY, world_size, wait_s=0.04)
    assert kill_at_random(run, 3, seed=10 + world_size) >= 2
    run.finish()
    assert "resumed: epoch" in run.log
    assert_same(run.folder, straight.folder)
    history = run.history()
    assert len(history["epoch"]) * 13 > WINDOW
    assert set(history) >= {"train_adv_loss", "train_adv_acc", "train_reg_loss", "val_reg_loss"}
    assert history["learning_rate"][:2] == [0.005, 0.01], "the ramp of the warm-up"
