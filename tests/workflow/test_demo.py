"""The whole workflow, as `make demo` runs it, with fewer epochs; and its report."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from snakemaking import PROFILE, ROOT, snakemake

FEW_EPOCHS = ("--config", "training={epochs: 2, early_stopping_patience: 0}")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default experiment on 2 ranks, run and reported."""
    workdir = tmp_path_factory.mktemp("demo")
    arguments = ("--profile", PROFILE, "--configfile", ROOT / "config/config.yaml")
    settings = (*arguments, *FEW_EPOCHS, "launch={processes: 2, device: cpu}")
    snakemake(workdir, *settings)
    again = snakemake(workdir, *settings)
    assert "Nothing to be done" in again.stdout
    snakemake(workdir, "--report", "report.html", *settings)
    return workdir / "results/digits"


def test_every_promised_file_is_there(demo: Path) -> None:
    """Four runs with two epochs each, scored on the test split, collected in one table."""
    runs = [f"learning_rate={rate}__seed={seed}" for rate in ("0.001", "0.003") for seed in (0, 1)]
    for name in runs:
        folder = demo / "runs" / name
        history = json.loads((folder / "history.json").read_text())
        assert history["epoch"] == [1, 2]
        metrics = json.loads((folder / "test/metrics.json").read_text())
        assert (metrics["split"], metrics["rows"]) == ("test", 270)
        assert len(pd.read_parquet(folder / "test/predictions.parquet")) == 270
        assert (folder / "curves.png").stat().st_size > 10_000
    board = pd.read_csv(demo / "leaderboard.tsv", sep="\t")
    assert board["n"].tolist() == [2, 2]
    assert board["selection_mean"].is_monotonic_decreasing
    assert sorted(pd.read_csv(demo / "runs.tsv", sep="\t")["run"]) == sorted(runs)


def test_two_ranks_have_trained(demo: Path) -> None:
    """The runs of this test were trained by two processes, and say nothing of torchrun's."""
    log = next((demo.parents[1] / "logs/digits/train").glob("*.log")).read_text()
    assert "epoch 2/2" in log
    assert "Traceback" not in log
    assert "OMP_NUM_THREADS" not in log, "the rule sets it; torchrun need not warn"


def test_the_report_works_offline(demo: Path) -> None:
    """Leaderboard, four learning curves and the confusion matrix, in one file without the net."""
    html = (demo.parents[1] / "report.html").read_text()
    for name in ("leaderboard.tsv", "leaderboard.png", "confusion.png", "curves.png"):
        assert name in html
    assert html.count("data:image/png;charset=utf8;filename=") == 6, "four curves, board, confusion"
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']https?:", html)
    assert "chosen on the validation split" in html, "the caption of the workflow"


def test_the_binary_example_runs(tmp_path: Path) -> None:
    """breast_cancer: a table with two classes, standardized, with a cosine schedule."""
    example = ROOT / "config/examples/breast_cancer.yaml"
    snakemake(tmp_path, "--profile", PROFILE, "--configfile", example, *FEW_EPOCHS)
    board = pd.read_csv(tmp_path / "results/breast_cancer/leaderboard.tsv", sep="\t")
    assert board["selection_metric"].tolist() == ["val_auc"]
    assert board["n"].tolist() == [3]
    assert board["auc_mean"][0] > 0.5
