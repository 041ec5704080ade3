"""`outlast inspect` and `outlast history`: what a person sees of a state and of the attempts."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import make_trainer, study_config, study_data

from outlast import cli
from outlast.files import seal
from outlast.recipe import fingerprint
from outlast.train.ledger import Ledger


def test_a_state_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digest, place, best, recipe with its fingerprint, and the bytes of each part."""
    trainer = make_trainer(tmp_path, study_data(), study_config())
    trainer.train(2)
    assert cli.main(["inspect", str(tmp_path / "model_resume.pt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "digest      good" in lines
    assert "place       2 epochs finished, and 0 steps" in lines
    assert f"fingerprint {fingerprint(trainer.recipe)}" in lines
    assert "recipe      training.batch_size: 8" in lines
    best = [line for line in lines if line.startswith("best")]
    assert re.fullmatch(r"best        epoch [12], val_auc 0\.\d+; [01] epochs since", best[0])
    size = sum(value.nbytes for value in trainer.study.state_dict().values())
    assert f"size        weights: {size:,} bytes of tensors" in lines


def test_a_model_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classes, inputs, best values, config."""
    make_trainer(tmp_path).train(2)
    assert cli.main(["inspect", str(tmp_path / "model_best.pt")]) == 0
    output = capsys.readouterr().out
    assert "kind        best model of a run\nbest        epoch " in output
    assert "classes     c0, c1\ninput       x: (4,)\n" in output


def test_a_file_that_is_damaged_or_foreign_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line; a flipped bit that torch does not see is seen by the digest."""
    make_trainer(tmp_path).train(1)
    path = tmp_path / "model_resume.pt"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    cli.main(["inspect", str(path)])
    assert "digest      BAD: truncated or altered, never trained from" in capsys.readouterr().out
    path.write_bytes(content[:1000])
    assert cli.main(["inspect", str(path)]) == 1
    assert f"error: {path}: no tensors and plain values" in capsys.readouterr().err
    assert cli.main(["inspect", str(tmp_path)]) == 1
    assert "cannot be read" in capsys.readouterr().err


def deep() -> list[Any]:
    """A list in a list, and so on; one that can still be written."""
    nested: list[Any] = []
    for _ in range(200):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "values",
    [
        5,
        None,
        [],
        ["optimizer", "row_shapes"],
        "optimizer and row_shapes",
        torch.ones(3),
        {},
        {1: 2},
        {"optimizer": 1},
        {"row_shapes": {}},
        {"model": {"weight": torch.ones(2)}, "optimizer": {"state": {}}, "epoch": 3},
        {"format": torch.ones(2), "recipe": {}, "optimizer": {}},
        {"row_shapes": deep()},
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_of_somebody_else_is_told(
    values: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, whatever torch has saved there."""
    path = tmp_path / "file.pt"
    torch.save(values, path)
    assert cli.main(["inspect", str(path)]) == 1
    error = capsys.readouterr().err
    assert error == f"error: {path}: neither a state nor a model of this version of outlast\n"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("model_best.pt", {"versions": None}),
        ("model_best.pt", {"classes": 5}),
        ("model_best.pt", {"best": [1]}),
        ("model_best.pt", {"row_shapes": {"x": None}}),
        ("model_best.pt", {"config": {}, "surplus": 1}),
        ("model_resume.pt", {"selection": {}}),
        ("model_resume.pt", {"recipe": {1: 2, "a": 3}}),
        ("model_resume.pt", {"recipe": 7}),
        ("model_resume.pt", {"sums": 7}),
    ],
)
def test_a_file_that_is_ours_by_half_is_told(
    name: str, changes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has built it, sealed it even: one line, no traceback."""
    make_trainer(tmp_path).train(1)
    values = torch.load(tmp_path / name, weights_only=True) | changes
    values = {key: value for key, value in values.items() if value is not None}
    content = io.BytesIO()
    torch.save(values, content)
    (tmp_path / name).write_bytes(seal(content.getvalue()))
    assert cli.main(["inspect", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert error.endswith(": neither a state nor a model of this version of outlast\n")
    assert error.count("\n") == 1


def test_a_state_of_another_format_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With both formats."""
    make_trainer(tmp_path).train(1)
    values = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    del values["sums"]
    torch.save(values | {"format": 3}, tmp_path / "old.pt")
    assert cli.main(["inspect", str(tmp_path / "old.pt")]) == 1
    assert "old.pt: a state of format 3, and this version of outlast reads format" in (
        capsys.readouterr().err
    )


def test_what_no_terminal_shows_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes that are numbers, or orders to a terminal."""
    make_trainer(tmp_path).train(1)
    values = torch.load(tmp_path / "model_best.pt", weights_only=True)
    values["classes"] = [1, "\x1b[2Jred", "\ud800"]
    torch.save(values, tmp_path / "odd.pt")
    assert cli.main(["inspect", str(tmp_path / "odd.pt")]) == 0
    assert "classes     1, ?[2Jred, ?\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes",
    [
        {"started": 1e300},
        {"lost_seconds": float("nan")},
        {"epoch": "x", "step": [1]},
        {"reason": [[1]], "host": {"a": 1}},
        {"reason": "\x1b[2J\ud800 [bold]x[/nope]", "host": "[/]", "job": 7},
        None,
    ],
)
def test_odd_attempts_are_shown_or_left_out(
    changes: dict[str, Any] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the good ones, which are shown as ever."""
    for _ in range(2):
        Ledger(tmp_path).end("interrupted", "why")
    path = tmp_path / "attempts.jsonl"
    good, other = path.read_text().splitlines()
    odd = json.dumps(json.loads(other) | changes) if changes else "[" * 100_000
    path.write_text(f"{good}\n{odd}\n")
    (tmp_path / "status.json").unlink()
    assert cli.main(["history", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "interrupted: why" in output
    assert "\x1b" not in output


def test_attempts_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with where it began and came to, what it kept and lost, and why it ended."""
    first = Ledger(tmp_path)
    first.begin(0, 0, 0.0)
    first.update(1, 3)
    first.keep(5.0)
    first.end("interrupted", "SIGTERM: asked to")
    Ledger(tmp_path).begin(1, 3, 5.0)
    assert cli.main(["history", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"\n1 .* 0\+0 +1\+3 +5\.0 +0\.0 +interrupted", output)
    assert re.search(r"\n2 .* 1\+3 +1\+3 +0\.0 +0\.\d +running", output)
    assert "2 attempts: 5.0 s kept, 0." in output
    assert cli.main(["history", str(tmp_path / "nothing")]) == 1
    assert "no attempt is on record there" in capsys.readouterr().err
