import csv
import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from results_on_disk import write_experiment
from rich.console import Console

from outlast.errors import DataError
from outlast.report import leaderboard
from outlast.report.leaderboard import collect, show
from outlast.report.results import score_of, words_of


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a tab-separated table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def collect_into(folder: Path, runs: Path) -> tuple[str, list[dict[str, str]]]:
    """Collect an experiment; return the best run's name and the leaderboard."""
    best = collect(runs, runs.parent, folder)
    return best.name, read_table(folder / "leaderboard.tsv")


def test_mean_and_standard_deviation_are_those_of_the_replicates(tmp_path: Path) -> None:
    """By hand: 0.80, 0.84, 0.88 have mean 0.84 and, with n - 1, deviation 0.04."""
    runs = write_experiment(
        tmp_path / "exp", {"lr=1": [(0.80, 0.7), (0.88, 0.9), (0.84, 0.8)], "lr=2": [(0.5, 0.5)]}
    )
    best, rows = collect_into(tmp_path / "out", runs)
    first = rows[0]
    assert (first["rank"], first["setting"], first["n"]) == ("1", "lr=1", "3")
    assert float(first["selection_mean"]) == pytest.approx(0.84)
    assert float(first["selection_sd"]) == pytest.approx(0.04)
    for score in ("accuracy", "f1", "auc"):
        assert float(first[f"{score}_mean"]) == pytest.approx(0.8)
        assert float(first[f"{score}_sd"]) == pytest.approx(0.1)
    assert float(first["loss_mean"]) == 0.5
    assert float(first["best_epoch_mean"]) == 2.0
    assert first["selection_metric"] == "val_f1"
    assert first["split"] == "test"
    # within the best setting, the best run is that of the highest validation value
    assert best == first["best_run"] == "lr=1__seed=1"


def test_order_is_that_of_validation_where_test_disagrees(tmp_path: Path) -> None:
    """A setting that is best on test and second on validation is second; so it is with runs."""
    runs = write_experiment(
        tmp_path / "exp",
        {"lucky": [(0.70, 0.99), (0.72, 0.98)], "better": [(0.80, 0.60), (0.79, 0.90)]},
    )
    best, rows = collect_into(tmp_path / "out", runs)
    assert [row["setting"] for row in rows] == ["better", "lucky"]
    assert best == "better__seed=0"


def test_lower_validation_loss_comes_first(tmp_path: Path) -> None:
    """With `val_loss` the smallest mean wins, and the smallest run within it."""
    runs = write_experiment(
        tmp_path / "exp", {"high": [(0.9, 0.9)], "low": [(0.3, 0.5), (0.2, 0.5)]}, "val_loss"
    )
    best, rows = collect_into(tmp_path / "out", runs)
    assert [row["setting"] for row in rows] == ["low", "high"]
    assert best == "low__seed=1"


def test_undefined_loss_does_not_come_first(tmp_path: Path) -> None:
    """Where lower is better, an undefined value is not taken for 0."""
    runs = write_experiment(tmp_path / "exp", {"a": [(None, 0.9)], "b": [(0.7, 0.5)]}, "val_loss")
    _, rows = collect_into(tmp_path / "out", runs)
    assert [row["setting"] for row in rows] == ["b", "a"]


def test_single_replicate_has_no_standard_deviation(tmp_path: Path) -> None:
    """One run says nothing about spread: the field is empty, not 0."""
    runs = write_experiment(tmp_path / "exp", {"run": [(0.8, 0.7)]})
    _, rows = collect_into(tmp_path / "out", runs)
    assert rows[0]["n"] == "1"
    assert rows[0]["selection_sd"] == rows[0]["accuracy_sd"] == ""
    assert float(rows[0]["selection_mean"]) == 0.8


def test_undefined_values_come_last_and_are_not_averaged_away(tmp_path: Path) -> None:
    """A setting with an undefined replicate has no mean; it follows the worst defined one."""
    runs = write_experiment(
        tmp_path / "exp",
        {"b": [(None, 0.9), (0.99, None)], "a": [(None, 0.9), (None, 0.9)], "c": [(0.1, 0.1)]},
    )
    best, rows = collect_into(tmp_path / "out", runs)
    assert [row["setting"] for row in rows] == ["c", "a", "b"]
    assert rows[2]["selection_mean"] == rows[2]["accuracy_mean"] == ""
    assert best == "c__seed=0"
    # within a setting too: the defined replicate precedes the undefined one
    assert rows[2]["best_run"] == "b__seed=1"


def test_equal_settings_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    """A tie does not depend on the order of the list of runs."""
    runs = write_experiment(tmp_path / "exp", {"b": [(0.5, 0.9)], "a": [(0.5, 0.1)]})
    _, rows = collect_into(tmp_path / "out", runs)
    assert [row["setting"] for row in rows] == ["a", "b"]


def test_runs_table_has_a_row_for_each_run(tmp_path: Path) -> None:
    """runs.tsv gives every run its own values, in the order of the leaderboard."""
    runs = write_experiment(tmp_path / "exp", {"b": [(0.5, 0.4), (0.6, None)], "a": [(0.7, 0.2)]})
    collect_into(tmp_path / "out", runs)
    rows = read_table(tmp_path / "out" / "runs.tsv")
    assert [row["run"] for row in rows] == ["a__seed=0", "b__seed=1", "b__seed=0"]
    assert [row["setting_rank"] for row in rows] == ["1", "2", "2"]
    assert [row["selection"] for row in rows] == ["0.7", "0.6", "0.5"]
    assert [row["accuracy"] for row in rows] == ["0.2", "", "0.4"]
    assert [row["best_epoch"] for row in rows] == ["1", "2", "1"]


def test_missing_results_are_named(tmp_path: Path) -> None:
    """A run without results stops the collection, which names the file and writes nothing."""
    runs = write_experiment(tmp_path / "exp", {"a": [(0.5, 0.5), (0.6, 0.6)]})
    missing = tmp_path / "exp" / "runs" / "a__seed=1" / "test" / "metrics.json"
    missing.unlink()
    with pytest.raises(DataError, match=r"(?s)1 of 4 .*a__seed=1/test/metrics\.json"):
        collect(runs, runs.parent, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_truncated_results_are_named(tmp_path: Path) -> None:
    """Half a JSON file is an error with its path, not a traceback of the parser."""
    runs = write_experiment(tmp_path / "exp", {"a": [(0.5, 0.5)]})
    history = tmp_path / "exp" / "runs" / "a__seed=0" / "history.json"
    history.write_text(history.read_text()[:50])
    with pytest.raises(DataError, match=r"history\.json is no valid JSON"):
        collect(runs, runs.parent, tmp_path / "out")


def test_different_selection_metrics_have_no_order(tmp_path: Path) -> None:
    """F1 of one run is not compared with the loss of another."""
    runs = write_experiment(tmp_path / "exp", {"a": [(0.5, 0.5)], "b": [(0.5, 0.5)]})
    path = tmp_path / "exp" / "runs" / "b__seed=0" / "history.json"
    history = json.loads(path.read_text())
    path.write_text(json.dumps({**history, "selection_metric": "val_loss"}))
    with pytest.raises(DataError, match="val_f1, val_loss"):
        collect(runs, runs.parent, tmp_path / "out")


def test_shown_table_fits_and_marks_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 100 columns every number is whole, one row has the star, no control codes."""
    long = "__".join(["learning_rate=0.0003", "weight_decay=0.0001", "hidden=128-128-64"])
    runs = write_experiment(
        tmp_path / "exp",
        {long: [(0.80, 0.7), (0.84, 0.8)], "[red]=1": [(0.5, 0.5)], "none": [(None, 0.5)]},
    )
    collect(runs, runs.parent, tmp_path / "out")
    capsys.readouterr()
    show(tmp_path / "out" / "leaderboard.tsv")
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 100
    starred = [line for line in lines if line.lstrip().startswith("* 1")]
    assert len(starred) == 1
    sd = math.sqrt(2) * 0.02
    assert f"0.8200 ± {sd:.4f}" in starred[0]
    assert "0.7500 ± 0.0707" in starred[0]
    text = "\n".join(lines)
    assert "[red]=1" in text
    for word in long.split("__"):
        assert word in text
    assert "undefined" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("metric", "left_out"), [("val_f1", "AUROC"), ("val_auc", "F1")])
def test_a_narrow_terminal_shows_two_of_the_scores(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    left_out: str,
) -> None:
    """At 80 columns the one that selected the epoch stays, and no number is cut."""
    runs = write_experiment(tmp_path / "exp", {"learning_rate=0.0003": [(0.8, 0.7), (0.84, 0.8)]})
    for path in (tmp_path / "exp").rglob("history.json"):
        history = json.loads(path.read_text())
        path.write_text(json.dumps({**history, "selection_metric": metric}))
    collect(runs, runs.parent, tmp_path / "out")
    capsys.readouterr()
    terminal = functools.partial(Console, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(leaderboard, "Console", terminal)
    show(tmp_path / "out" / "leaderboard.tsv")
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("0.7500 ± 0.0707") == 2
    assert "0.8200 ± 0.0283" in text
    scores = text.splitlines()[1]
    assert left_out not in scores.replace("F1" if metric == "val_f1" else "AUROC", "", 1)


def test_nothing_is_starred_without_a_validation_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without validation no setting has won."""
    runs = write_experiment(tmp_path / "exp", {"a": [(None, 0.5)], "b": [(None, 0.9)]})
    collect(runs, runs.parent, tmp_path / "out")
    show(tmp_path / "out" / "leaderboard.tsv")
    assert "* 1" not in capsys.readouterr().out


def test_report_imports_no_torch() -> None:
    """Tables and figures are made in a process that never loads torch, or pyplot's global state."""
    code = (
        "import sys, outlast.report.leaderboard, outlast.report.curves;"
        "print([name for name in ('torch', 'matplotlib.pyplot') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


OPERATING_POINTS = {
    "tpr_at_fpr:0.01": "TPR at FPR 0.01",
    "callable_at_precision:0.99": "callable at precision 0.99",
    "precision_at_recall:0.9": "precision at recall 0.9",
    "recall_at_precision:0.9": "recall at precision 0.9",
}


@pytest.mark.parametrize("metric", OPERATING_POINTS)
def test_an_operating_point_has_columns_of_its_own(tmp_path: Path, metric: str) -> None:
    """Higher is better; the tables hold its test values under its name, and all the others."""
    settings: dict[str, list[tuple[float | None, float | None]]] = {
        "low": [(0.2, 0.9), (0.3, 0.8)],
        "high": [(0.9, 0.4), (0.8, 0.6)],
        "none": [(None, None), (0.99, 0.5)],
    }
    runs = write_experiment(tmp_path / "exp", settings, metric)
    best, rows = collect_into(tmp_path / "out", runs)
    assert best == "high__seed=0"
    assert [row["setting"] for row in rows] == ["high", "low", "none"]
    assert {row["selection_metric"] for row in rows} == {metric}
    assert float(rows[0][f"{metric}_mean"]) == pytest.approx(0.25)
    assert float(rows[0]["accuracy_mean"]) == pytest.approx(0.5)
    assert rows[2][f"{metric}_mean"] == ""
    each = read_table(tmp_path / "out" / "runs.tsv")
    assert [row[metric] for row in each] == ["0.2", "0.3", "0.4", "0.45", "0.25", ""]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("metric", OPERATING_POINTS)
def test_an_operating_point_is_shown_on_both_splits(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    width: int,
) -> None:
    """Its words head validation and test; at 80 columns too, with no number cut."""
    settings: dict[str, list[tuple[float | None, float | None]]] = {
        "learning_rate=0.0003": [(0.8, 0.7), (0.84, 0.8)]
    }
    runs = write_experiment(tmp_path / "exp", settings, metric)
    collect(runs, runs.parent, tmp_path / "out")
    capsys.readouterr()
    terminal = functools.partial(Console, force_terminal=True, color_system=None, width=width)
    monkeypatch.setattr(leaderboard, "Console", terminal)
    show(tmp_path / "out" / "leaderboard.tsv")
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= width
    first, second = OPERATING_POINTS[metric].split(" at ")
    assert text.count(f"{first} at ") == text.count(second) == 2
    assert "0.8200 ± 0.0283" in text
    assert "0.3750 ± 0.0354" in text
    assert text.count("0.7500 ± 0.0707") == (1 if width == 80 else 2)


def test_results_without_the_operating_point_are_named(tmp_path: Path) -> None:
    """Metrics of another version lack it: an error with the file, not a wrong column."""
    runs = write_experiment(tmp_path / "exp", {"a": [(0.5, 0.5)]}, "tpr_at_fpr:0.1")
    path = tmp_path / "exp" / "runs" / "a__seed=0" / "test" / "metrics.json"
    metrics = json.loads(path.read_text())
    del metrics["tpr_at_fpr:0.1"]
    path.write_text(json.dumps(metrics))
    with pytest.raises(DataError, match=r"'tpr_at_fpr:0.1' is missing from .*metrics\.json"):
        collect(runs, runs.parent, tmp_path / "out")


def test_words_and_test_score_of_every_metric() -> None:
    """Each metric has words, and the test score that measures the same; others stay as they are."""
    known = {"val_acc": "accuracy", "val_f1": "F1", "val_auc": "AUROC", "val_loss": "loss"}
    for metric, words in (known | OPERATING_POINTS).items():
        assert words_of(metric) == words
    assert {metric: score_of(metric) for metric in OPERATING_POINTS} == {
        metric: metric for metric in OPERATING_POINTS
    }
    scores = ["accuracy", "f1", "auc", "loss", "accuracy"]
    assert [score_of(metric) for metric in [*known, None]] == scores
    assert words_of("a:b") == "a:b"
