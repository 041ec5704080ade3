"""A state continues only under the recipe that it was made with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import NETWORK, Run, assert_same, run_config

Undisturbed = Callable[[int], Path]


@pytest.fixture
def finished(undisturbed: Undisturbed, data: Path, tmp_path: Path) -> Run:
    """A copy of the finished run, to start again."""
    shutil.copytree(undisturbed(1), tmp_path / "run")
    return Run(tmp_path / "run", data)


def test_missing_outputs_come_back_from_the_state(finished: Run, undisturbed: Undisturbed) -> None:
    """Killed after its end and before Snakemake saw it: the outputs are written again."""
    for name in ("model_best.pt", "history.json"):
        (finished.folder / name).unlink()
    finished.finish()
    assert "already complete" in finished.log
    assert not finished.trains(), "no step"
    assert_same(finished.folder, undisturbed(1))


def test_changed_learning_rate_starts_fresh_and_back_again_continues(
    finished: Run, undisturbed: Undisturbed
) -> None:
    """The old state is set aside and named; changing the value back takes it up again."""
    finished.config = run_config(learning_rate=0.02)
    finished.finish()
    assert "changed: training.learning_rate (0.01 -> 0.02)" in finished.log
    assert finished.history()["learning_rate"][0] == 0.02
    assert finished.history()["attempts"] >= 2
    finished.config = run_config()
    finished.finish()
    assert "taking it back" in finished.log
    assert "already complete" in finished.log
    assert_same(finished.folder, undisturbed(1))


def test_more_epochs_extend(finished: Run, data: Path, tmp_path: Path) -> None:
    """A larger `epochs` goes on from the end, and equals a straight longer run bit for bit."""
    finished.config = run_config(epochs=4)
    finished.finish()
    assert "resumed: epoch 4, after step 0" in finished.log
    straight = Run(tmp_path / "straight", data, config=run_config(epochs=4))
    straight.finish()
    assert_same(finished.folder, straight.folder)


def test_data_elsewhere_are_the_same_data(
    finished: Run, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A copied, re-touched data folder is the same data set (story 18)."""
    shutil.copytree(finished.data, tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere").iterdir():
        path.touch()
    finished.data = tmp_path / "elsewhere"
    finished.finish()
    assert "already complete" in finished.log


def test_edited_network_starts_fresh(finished: Run, tmp_path: Path) -> None:
    """A comment in the user's network file is no change; another layer is."""
    copy = tmp_path / "network.py"
    text = NETWORK.read_text()
    copy.write_text(text + "\n# a comment\n")
    finished.config["model"]["network"] = f"{copy}:PatientNet"
    finished.finish()
    assert "already complete" in finished.log, "the same code under another path"
    copy.write_text(text.replace("nn.ReLU()", "nn.GELU()"))
    finished.finish()
    assert "changed: model.source" in finished.log
