import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import make_trainer, small_config, weights

from outlast.config import parse
from outlast.errors import InterruptedRunError
from outlast.sections import Config
from outlast.train.interrupt import Interrupt
from outlast.train.trainer import Trainer

TIMES = ("seconds", "samples_per_second", "attempts", "kept_seconds", "lost_seconds")


def numbers(history: dict[str, Any]) -> dict[str, Any]:
    """A history without what differs between two equal runs."""
    return {key: value for key, value in history.items() if key not in TIMES}


def best_of(folder: Path) -> torch.Tensor:
    """The best weights of a finished run, as one vector."""
    content = torch.load(folder / "model_best.pt", weights_only=True)
    return torch.cat([value.flatten() for value in content["weights"].values()])


def stop_after(trainer: Trainer, boundaries: int) -> None:
    """Set the flag of the trainer at a boundary, as a signal would."""
    interrupt, seen = Interrupt(), iter(range(1, boundaries + 1))
    trainer._keeper.poll._interrupt = interrupt
    real = trainer._keeper.poll.ask

    def ask() -> Any:
        if next(seen, boundaries) == boundaries:
            interrupt._note(15)
        return real()

    trainer._keeper.poll.ask = ask  # type: ignore[method-assign]


def changing(**training: Any) -> Config:
    """A config whose state has a part in each section: momentum, plateau, dropout, patience."""
    scheduler = {"name": "reduce_on_plateau", "patience": 0}
    return small_config(**{"optimizer": "adamw", "scheduler": scheduler, **training})


@pytest.mark.parametrize("boundaries", [1, 3, 4, 5, 6, 9, 17])
def test_stopped_anywhere_the_run_ends_the_same(tmp_path: Path, boundaries: int) -> None:
    """Stopped at a step or in validation, a run of new objects ends with the same bits."""
    straight = make_trainer(tmp_path / "straight", config=changing(), dropout=0.3)
    expected = straight.train(3)
    first = make_trainer(tmp_path / "run", config=changing(), dropout=0.3)
    stop_after(first, boundaries)
    with pytest.raises(InterruptedRunError, match=r"interrupted in epoch \d .*state is saved"):
        first.train(3)
    second = make_trainer(tmp_path / "run", config=changing(), dropout=0.3)
    found = second.train(3)
    assert torch.equal(weights(second), weights(straight))
    assert torch.equal(best_of(tmp_path / "run"), best_of(tmp_path / "straight"))
    assert numbers(found) == numbers(expected)
    assert found["attempts"] == 2


@pytest.mark.parametrize("boundaries", [3, 5, 11])
def test_the_same_trainer_may_go_on(tmp_path: Path, boundaries: int) -> None:
    """Stopped within an epoch or a validation and called again, it leaves out no epoch."""
    straight = make_trainer(tmp_path / "straight", config=changing(), dropout=0.3)
    expected = straight.train(3)
    trainer = make_trainer(tmp_path / "run", config=changing(every_seconds=0), dropout=0.3)
    ask = trainer._keeper.poll.ask
    stop_after(trainer, boundaries)
    with pytest.raises(InterruptedRunError):
        trainer.train(3)
    trainer._keeper.poll._interrupt.received = None
    trainer._keeper.poll.ask = ask  # type: ignore[method-assign]
    assert numbers(trainer.train(3)) == numbers(expected)
    assert torch.equal(weights(trainer), weights(straight))


def test_an_interrupted_attempt_says_so(tmp_path: Path) -> None:
    """The error names epoch and step, and the ledger has a line `interrupted`."""
    trainer = make_trainer(tmp_path)
    stop_after(trainer, 2)
    with pytest.raises(InterruptedRunError, match="in epoch 1 after step 2 of 4"):
        trainer.train(3)
    (line,) = (tmp_path / "attempts.jsonl").read_text().splitlines()
    assert json.loads(line)["state"] == "interrupted"


def test_a_finished_run_writes_missing_outputs_again(tmp_path: Path, said: list[str]) -> None:
    """Killed before the workflow saw its outputs, a run gives the same ones, without a step."""
    expected = make_trainer(tmp_path).train(3)
    model = best_of(tmp_path)
    for name in ("model_best.pt", "history.json"):
        (tmp_path / name).unlink()
    again = make_trainer(tmp_path)
    found = again.train(3)
    assert again.model.masks == [], "no training step was taken"
    assert "INFO already complete: 3 epochs; writing the outputs from the state" in said
    assert torch.equal(best_of(tmp_path), model)
    assert numbers(found) == numbers(expected)
    assert numbers(json.loads((tmp_path / "history.json").read_text())) == numbers(expected)


def test_an_early_stopped_run_is_complete_too(tmp_path: Path, said: list[str]) -> None:
    """The state is written before the end: a kill right after early stopping trains no more."""
    expected = make_trainer(tmp_path, learning_rate=1e-12).train(20, 2)
    (tmp_path / "history.json").unlink()
    found = make_trainer(tmp_path, learning_rate=1e-12).train(20, 2)
    assert numbers(found) == numbers(expected)
    assert any("already complete: 3 epochs" in line for line in said)


def test_more_epochs_extend_a_run(tmp_path: Path) -> None:
    """Two epochs and then five are bit for bit the five of a straight run."""
    straight = make_trainer(tmp_path / "straight", config=changing(epochs=5), dropout=0.3)
    expected = straight.train(5, 0)
    make_trainer(tmp_path / "run", config=changing(epochs=2), dropout=0.3).train(2, 0)
    second = make_trainer(tmp_path / "run", config=changing(epochs=5), dropout=0.3)
    found = second.train(5, 0)
    assert len(second.model.masks) == 3 * 4, "three more epochs of four steps"
    assert torch.equal(weights(second), weights(straight))
    assert torch.equal(best_of(tmp_path / "run"), best_of(tmp_path / "straight"))
    assert numbers(found) == numbers(expected)


def test_fewer_epochs_start_fresh(tmp_path: Path, said: list[str]) -> None:
    """Epochs below those trained: the old state is set aside, the new run is a straight one."""
    expected = make_trainer(tmp_path / "straight").train(2)
    make_trainer(tmp_path / "run").train(4)
    found = make_trainer(tmp_path / "run").train(2)
    assert numbers(found) == numbers(expected)
    assert any("training.epochs (2)" in line and "starting fresh" in line for line in said)
    assert len(list((tmp_path / "run").glob("model_resume.????????????.epoch-4.pt"))) == 1


def test_a_cosine_of_another_length_starts_fresh(tmp_path: Path, said: list[str]) -> None:
    """`epochs` shapes the rates of a cosine: a longer one is another run."""
    cosine = {"scheduler": {"name": "cosine"}}
    expected = make_trainer(tmp_path / "straight", epochs=5, **cosine).train(5)
    make_trainer(tmp_path / "run", epochs=2, **cosine).train(2)
    found = make_trainer(tmp_path / "run", epochs=5, **cosine).train(5)
    assert numbers(found) == numbers(expected)
    assert any("changed: training.epochs (2 -> 5)" in line for line in said)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda: {"learning_rate": 0.01}, "training.learning_rate (0.05 -> 0.01)"),
        (lambda: {"seed": 1}, "training.seed (0 -> 1)"),
    ],
)
def test_a_changed_recipe_starts_fresh(
    tmp_path: Path, said: list[str], change: Callable[[], dict[str, Any]], word: str
) -> None:
    """What shapes the numbers never continues a state of other numbers (story 17)."""
    make_trainer(tmp_path).train(2)
    trainer = make_trainer(tmp_path, **change())
    trainer.train(2)
    assert len(trainer.model.masks) == 2 * 4
    assert any(word in line for line in said)


def test_what_shapes_no_number_goes_on(tmp_path: Path) -> None:
    """Another interval, name, thread count and amount of memory continue the state."""
    make_trainer(tmp_path).train(2)
    content = small_config().model_dump(mode="json")
    content |= {"experiment": "renamed", "checkpoint": {"every_seconds": 5}}
    content |= {"launch": {"threads": 3}, "resources": {"mem_mb": 1}}
    trainer = make_trainer(tmp_path, config=parse(content))
    trainer.train(3)
    assert len(trainer.model.masks) == 4


def test_a_damaged_state_falls_back_one_generation(tmp_path: Path, said: list[str]) -> None:
    """A state spoilt on the disk costs one interval, and changes no number (story 2)."""
    expected = make_trainer(tmp_path / "straight").train(3)
    make_trainer(tmp_path / "run").train(2)
    state = tmp_path / "run" / "model_resume.pt"
    state.write_bytes(state.read_bytes()[:-100])
    trainer = make_trainer(tmp_path / "run")
    found = trainer.train(3)
    assert numbers(found) == numbers(expected)
    assert len(trainer.model.masks) == 2 * 4, "the second epoch again, and the third"
    assert "INFO continuing from the previous generation, model_resume.prev.pt" in said
