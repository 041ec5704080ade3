"""What is refused before a job is submitted: by label and roles, read without the inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.check import before_jobs
from outlast.check.before_jobs import problems_before_jobs
from outlast.config import parse
from outlast.sections import Config


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the same 30 rows of three classes as table, archive and folder."""
    columns: dict[str, np.ndarray] = {
        "gene": np.arange(30, dtype=np.float32),
        "cell": np.array([f"c{row % 3}" for row in range(30)]),
        "donor": np.array([f"d{row % 5}" for row in range(30)]),
        "age": np.arange(30) / 10,
    }
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(columns), *lines]))
    np.savez(tmp_path / "rows.npz", **columns)
    (tmp_path / "rows").mkdir()
    for name, values in columns.items():
        np.save(tmp_path / "rows" / f"{name}.npy", values)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(source: str = "rows.csv", data: dict[str, Any] | None = None, **sections: Any) -> Config:
    """An experiment on the rows."""
    keys = {"source": source, "label": "cell", "noise_group": "donor", "target": "age"}
    return parse({"data": keys | (data or {}), **sections})


RATES = {"name": "noise_corrected_bce", "label_noise": {"rates": {"d9": 0.1}}}
MISFITS = {
    "loss": ({"loss": {"name": "bce"}}, ["loss.name: bce is for 2 classes, and the data"]),
    "weights": ({"loss": {"class_weights": [1, 2]}}, ["loss.class_weights: [1.0, 2.0] has 2 wei"]),
    "group": (
        {"loss": RATES},
        ["loss.name: noise_", "loss.label_noise.rates.d9: 0.1 is for no gr"],
    ),
    "metric": (
        {"training": {"selection_metric": "tpr_at_fpr:0.01"}},
        ["training.selection_metric: tpr_at_fpr:0.01 is for 2 classes, and the data have 3; use"],
    ),
    "range": ({"regression": {"weight": 1, "range": "unit"}}, ["regression.range: unit, and the"]),
}


@pytest.mark.parametrize("source", ["rows.csv", "rows.npz", "rows"])
@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_the_rows(source: str, name: str) -> None:
    """Each with key, value and fix, from every kind of source."""
    sections, starts = MISFITS[name]
    problems = problems_before_jobs([config(source, **sections)])
    assert len(problems) == len(starts)
    for problem, start in zip(problems, starts, strict=True):
        assert problem.startswith(start), problem


@pytest.mark.parametrize("source", ["rows.csv", "rows.npz", "rows"])
def test_what_fits_is_let_pass(source: str) -> None:
    """No problem where training would find none."""
    loss = {"name": "cross_entropy", "class_weights": [1, 2, 3]}
    assert problems_before_jobs([config(source, loss=loss, regression={"weight": 1})]) == []


def test_a_built_in_is_looked_at_too() -> None:
    """Digits have ten classes."""
    data = {"label": "label", "noise_group": None, "target": None}
    (problem,) = problems_before_jobs([config("digits", data, loss={"name": "focal"})])
    assert problem.startswith("loss.name: focal is for 2 classes, and the data have 10")


def test_each_problem_of_a_sweep_is_told_once() -> None:
    """Thirty replicates have one misfit; the runs that fit do not hide it."""
    runs = [config(loss={"name": "bce"}, training={"seed": seed}) for seed in range(30)]
    assert len(problems_before_jobs([config(loss={"name": "cross_entropy"}), *runs])) == 1


def test_rows_that_no_setting_asks_about_are_not_read(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defaults fit any label; an absent or very large source is left to the first job."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the source was read")

    monkeypatch.setattr(before_jobs, "read_without_inputs", refuse)
    assert problems_before_jobs([config()]) == []
    assert problems_before_jobs([config("later.csv", loss={"name": "bce"})]) == []
    (tables / "notes.txt").write_text("x")
    with pytest.raises(AssertionError, match="was read"):
        problems_before_jobs([config(loss={"name": "bce"})])
    monkeypatch.setattr(before_jobs, "LARGE_TABLE_BYTES", 10)
    assert problems_before_jobs([config(loss={"name": "bce"})]) == []


def test_a_label_that_cannot_be_used_is_told(tables: Path) -> None:
    """As the job that prepares the data would say it; names that are missing come first."""
    (tables / "rows.csv").write_text("gene,cell,donor,age\n1,a,d1,1\n2,a,d1,1\n")
    (problem,) = problems_before_jobs([config(loss={"name": "bce"})])
    assert problem.startswith("data.label: 'cell' is a in every row")
    problems = problems_before_jobs([config(data={"label": "kell"}, loss={"name": "bce"})])
    assert [problem.split(";")[0] for problem in problems] == [
        "data.label: 'kell' is not in the source"
    ]
