"""failure.json: which attempts are refused because of it, and who may write it."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import make_trainer, small_config

from outlast.data.sampling import Rows
from outlast.distributed import Distributed
from outlast.errors import (
    LostClaimError,
    ModelError,
    NonFiniteLossError,
    RepeatedFailureError,
)
from outlast.train.claim import Claim, Unclaimed
from outlast.train.failure import Failures
from outlast.train.trainer import Trainer


def failing(folder: Path, epochs: int) -> Trainer:
    """A trainer that fails in its third epoch, each time."""
    trainer = make_trainer(folder, config=small_config(epochs=epochs))
    real = trainer._train_step

    def leap(rows: Rows) -> None:
        real(rows)
        if trainer.run.position.epoch == 2:
            next(trainer.study.parameters()).data[0, 0] = torch.inf

    trainer._train_step = leap  # type: ignore[method-assign]
    return trainer


def test_a_failure_is_tried_again_on_other_ranks_or_another_device(tmp_path: Path) -> None:
    """What an error advises may be just that: launch.processes."""
    claim = Unclaimed(tmp_path)
    two, one = Distributed(0, 2), Distributed()
    Failures(tmp_path, claim, two).note(ModelError("too few rows"), {}, (0, 0))
    assert "too few rows" in (Failures(tmp_path, claim, two).why_refused({}, (0, 0)) or "")
    for ranks in (one, replace(two, device=torch.device("meta"))):
        assert Failures(tmp_path, claim, ranks).why_refused({}, (0, 0)) is None


def test_a_run_that_is_complete_is_never_refused(tmp_path: Path) -> None:
    """A later epoch had failed; the epochs that are asked for now are all in the state."""
    for error in (NonFiniteLossError, RepeatedFailureError):
        with pytest.raises(error):
            failing(tmp_path, 4).train(4)
    history = failing(tmp_path, 2).train(2)
    assert history["epoch"] == [1, 2]
    assert not (tmp_path / "failure.json").exists()


def test_a_folder_in_its_place_ends_no_run(tmp_path: Path) -> None:
    """Neither a good one nor, for another reason than the one it has, a bad one."""
    (tmp_path / "failure.json").mkdir()
    with pytest.raises(NonFiniteLossError):
        failing(tmp_path, 4).train(4)
    assert failing(tmp_path, 2).train(2)["epoch"] == [1, 2]


@pytest.mark.parametrize("error", [None, 5, ["a"], {}])
def test_a_failure_without_words_refuses_nothing(tmp_path: Path, error: Any) -> None:
    """What is read is checked: there would be nothing to say."""
    failures = Failures(tmp_path, Unclaimed(tmp_path), Distributed())
    failures.note(ModelError("bad"), {}, (0, 0))
    content = json.loads((tmp_path / "failure.json").read_text())
    (tmp_path / "failure.json").write_text(json.dumps({**content, "error": error}))
    assert failures.why_refused({}, (0, 0)) is None


def test_a_late_owner_touches_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands there is of the attempt that has taken the run over."""
    late = Claim(tmp_path)
    assert late.try_acquire() is None
    late.release()  # as good as lost
    new = Claim(tmp_path)
    assert new.try_acquire() is None
    Failures(tmp_path, new, Distributed()).note(ModelError("new"), {}, (0, 0))
    before = (tmp_path / "failure.json").read_bytes()
    failures = Failures(tmp_path, late, Distributed())
    for ensure in (late.ensure, lambda: None):  # also where he was paused behind his look
        monkeypatch.setattr(late, "ensure", ensure)
        with pytest.raises((LostClaimError, FileNotFoundError)):
            failures.note(ModelError("old"), {}, (0, 0))
        with contextlib.suppress(LostClaimError):
            failures.clear()
        assert (tmp_path / "failure.json").read_bytes() == before
    Failures(tmp_path, new, Distributed()).clear()
    assert not (tmp_path / "failure.json").exists()
    new.release()
