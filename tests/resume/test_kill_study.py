"""The law of resume with everything switched on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from killing import NETWORK, Run, assert_same
from test_kill import kill_at_random

from outlast.train.clipping import WINDOW

STUDY: dict[str, Any] = {
    "data": {
        "source": "diabetes",
        "inputs": ["age", "bmi", "bp", "s[1-6]"],
        "label": "progression",
        "threshold": "median",
        "noise_group": "sex",
        "confound": "sex",
        "target": "progression",
        "normalize": "standard",
        "split": {"stratify": False},
    },
    "model": {"network": f"{NETWORK}:PatientNet"},
    "loss": {
        "name": "noise_corrected_bce",
        "label_noise": {"rates": {"1": 0.1, "2": 0.2}},
        "label_smoothing": 0.05,
        "class_weights": "auto",
    },
    "adversary": {"strength": 0.3, "anneal_epochs": 4},
    "regression": {"weight": 0.5},
    "training": {
        "epochs": 9,
        "batch_size": 24,  # 13 steps per epoch: the clip window is full before the end
        "grad_accum_split": 3,
        "learning_rate": 0.01,
        "scheduler": {"name": "reduce_on_plateau", "patience": 0},
        "warmup_epochs": 2,
        "selection_metric": "val_acc",  # coarse: it stands still, and the plateau fires
        "quantile_grad_clip": True,
        "max_grad_norm": 5.0,
        "precision": "bfloat16",
        "augment": {"jitter": 0.1, "min_scale": 0.9, "max_scale": 1.1},
        "early_stopping_patience": 0,
    },
}


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
