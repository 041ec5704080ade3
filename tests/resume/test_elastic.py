"""Another number of ranks at each attempt: the same batches in the same order."""

from pathlib import Path

import pytest
import torch
from killing import Run, run_config


def test_ranks_change_within_one_epoch(data: Path, tmp_path: Path) -> None:
    """Two ranks, one, three: killed twice in the first epoch, equal to one rank undisturbed."""
    config = run_config(optimizer="sgd", learning_rate=0.1)
    config["model"]["options"] = {"plain": True}
    straight = Run(tmp_path / "straight", data, config=config)
    straight.finish()
    run = Run(tmp_path / "run", data, config=config, every_seconds=0, wait_s=0.15)
    for run.world_size in (2, 1):
        assert run.kill_when(run.trains, 0.5)
    run.world_size = 3
    run.finish()
    resumed = [line for line in run.log.splitlines() if "resumed: epoch 1, after step" in line]
    assert len(resumed) == 2, run.log
    one, other = straight.history(), run.history()
    for key in ("train_loss", "val_loss", "val_auc"):
        assert one[key] == pytest.approx(other[key], rel=1e-6), key
    assert one["train_acc"] == other["train_acc"]
    weights = [
        torch.load(path / "model_best.pt", weights_only=True)["weights"]
        for path in (straight.folder, run.folder)
    ]
    for name, value in weights[0].items():
        difference = (value - weights[1][name]).abs().max() / value.abs().max()
        assert difference < 1e-6, name
