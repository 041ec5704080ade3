"""An owner who is overtaken in the middle of a write says so, and not that a file is missing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import make_trainer

from outlast import files
from outlast.distributed import Distributed
from outlast.errors import LostClaimError, ModelError
from outlast.train.claim import Claim
from outlast.train.failure import Failures
from outlast.train.outputs import Outputs
from outlast.train.trainer import Trainer


class Overtaken:
    """The owner of a folder, and one who takes it over at an instant of a write."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch, self.reached = folder, monkeypatch, 0
        self.owner, self.other = Claim(folder), Claim(folder)
        assert self.owner.try_acquire() is None
        self.owner._stop.set()  # paused: no beats

    def at(self, point: str) -> None:
        """Let it happen there, and the other one finish."""

        def reach(name: str) -> None:
            if name == point and not self.reached:
                self.reached += 1
                self.other._take(2)
                self.other.release()

        self.monkeypatch.setattr(files, "reach", reach)

    def trainer(self) -> Trainer:
        """A run of one epoch of which all but the outputs is done."""
        trainer = make_trainer(self.folder)
        trainer.train_epoch()
        trainer.validate()
        trainer._finish_epoch(1)
        trainer._keeper._writer.drain()
        return trainer

    def outputs(self, trainer: Trainer) -> Outputs:
        """Those of the run, of this owner."""
        parts = trainer.data, trainer.objective, trainer.config, trainer.recipe, trainer.metric
        return Outputs(self.folder, self.owner, *parts)


def write_model(overtaken: Overtaken, trainer: Trainer) -> None:
    """model_best.pt."""
    outputs = overtaken.outputs(trainer)
    outputs.write_model(outputs.model(trainer.run))


def write_history(overtaken: Overtaken, trainer: Trainer) -> None:
    """history.json."""
    outputs = overtaken.outputs(trainer)
    outputs.write_history(outputs.history(trainer.run, "completed", 1, 0.0))


def note_failure(overtaken: Overtaken, trainer: Trainer) -> None:
    """failure.json."""
    failures = Failures(overtaken.folder, overtaken.owner, Distributed())
    failures.note(ModelError("no"), trainer.recipe, (0, 0))


@pytest.mark.parametrize("point", ["write", "fsync", "replace"])
@pytest.mark.parametrize("write", [write_model, write_history, note_failure])
def test_who_is_overtaken_in_a_write_says_so(
    write: Callable[[Overtaken, Trainer], None],
    point: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the name of the other, and nothing is written."""
    overtaken = Overtaken(tmp_path, monkeypatch)
    trainer = overtaken.trainer()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")}
    overtaken.at(point)
    with pytest.raises(LostClaimError, match="has taken this run over"):
        write(overtaken, trainer)
    assert overtaken.reached
    assert {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")} == before


def test_a_disk_that_fails_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is told, with the file, whatever the look at the claims meets."""
    overtaken = Overtaken(tmp_path, monkeypatch)
    trainer = overtaken.trainer()

    def full(name: str) -> None:
        raise OSError(28, "No space left on device")

    def away() -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "reach", full)
    with pytest.raises(OSError, match=r"No space left on device: .*history\.json"):
        write_history(overtaken, trainer)
    real, looks = overtaken.owner.ensure, [0]

    def ensure() -> None:
        looks[0] += 1
        real() if looks[0] == 1 else away()

    monkeypatch.setattr(overtaken.owner, "ensure", ensure)
    with pytest.raises(OSError, match=r"No space left on device: .*history\.json"):
        write_history(overtaken, trainer)
    assert looks == [2]
