"""`outlast inspect` and `outlast history`: what a person sees of a state and of the attempts."""

import re
from pathlib import Path

import pytest
from small_run import make_trainer, study_config, study_data

from outlast import cli
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
