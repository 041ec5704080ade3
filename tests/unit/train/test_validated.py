"""A stop within a validation: the next attempt goes on with its next batch."""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import Own, end_of, trainer_of
from rich.progress import Progress
from small_run import make_trainer, small_data, study_config, study_data
from test_own_networks import CountsEverywhere
from test_resume import stop_after
from torch import Tensor, nn

from outlast import cli
from outlast.distributed import Distributed
from outlast.errors import InterruptedRunError, ModelError
from outlast.train.checkpoint import Checkpoints
from outlast.train.deadline import Deadline
from outlast.train.selection import StoppingRule
from outlast.train.state import SavedState, problem_of
from outlast.train.trainer import Trainer
from outlast.train.validated import Validated
from outlast.train.writer import copy_of

# an epoch: four steps, and four batches of validation, of which the last has five rows
STEPS, BATCHES, EPOCHS = 4, 4, 2
DATA = small_data(validation=29)


class Draws(Own):
    """Random numbers, in validation too."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) + 0.1 * torch.randn(len(rows), 1)


class Averages(Own):
    """The rows that it is evaluated on, in a buffer that its first evaluation makes wider."""

    def extra(self) -> None:
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("again", self.mean)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.hidden(rows)
        if not self.training:
            if self.mean.numel() == 1:
                self.mean = self.again = torch.full((8,), float("nan")).nan_to_num()
            self.mean.lerp_(hidden.detach().mean(0), 0.1)
        return self.head(hidden + self.again)


def study(folder: Path) -> Trainer:
    """With heads; a regression has an output of its own."""
    return make_trainer(folder, study_data(validation=29), study_config())


def of(kind: Callable[[], nn.Module]) -> Callable[[Path], Trainer]:
    """A maker of trainers for a network."""
    return lambda folder: trainer_of(kind, folder, DATA)


MAKERS = {kind.__name__: of(kind) for kind in (Own, Draws, CountsEverywhere, Averages)}
MAKERS["study"] = study


def count_batches(trainer: Trainer) -> list[int]:
    """Return a list to which each batch of validation adds one item: its rows."""
    seen: list[int] = []
    real = trainer._validator._forward

    def forward(inputs: Any) -> Tensor:
        seen.append(len(inputs[0]))
        return real(inputs)

    trainer._validator._forward = forward  # type: ignore[method-assign]
    return seen


def ended(trainer: Trainer, folder: Path) -> Any:
    """Train to the end; return what the run ends with."""
    return end_of(trainer, folder, trainer.train(EPOCHS, 0))


@pytest.mark.parametrize("name", MAKERS)
def test_no_batch_is_lost_wherever_it_is_stopped(name: str, tmp_path: Path) -> None:
    """At every boundary of a validation: the same bits, and each batch is done once."""
    make = MAKERS[name]
    expected = ended(make(tmp_path / "straight"), tmp_path / "straight")
    for done in range(1, BATCHES + 1):
        for epoch in range(EPOCHS):
            folder = tmp_path / f"{epoch}-{done}"
            first = make(folder)
            seen = count_batches(first)
            stop_after(first, epoch * (STEPS + BATCHES) + STEPS + done)
            words = f"after step 4 of 4 and batch {done} of 4 of validation: the state is saved"
            with pytest.raises(InterruptedRunError, match=words):
                first.train(EPOCHS, 0)
            second = make(folder)
            again = count_batches(second)
            assert ended(second, folder) == expected, (epoch, done)
            assert len(seen) == epoch * BATCHES + done
            assert len(seen) + len(again) == EPOCHS * BATCHES
            assert again[:1] == ([5] if done == BATCHES - 1 else again[:1])


@pytest.mark.parametrize("name", MAKERS)
def test_a_deadline_that_is_past_only_makes_attempts_short(
    name: str, tmp_path: Path, said: list[str]
) -> None:
    """Each takes one step or one batch, says what to do about it, and the run comes to its end."""
    expected = ended(MAKERS[name](tmp_path / "straight"), tmp_path / "straight")
    batches, attempts = 0, 0
    for _ in range(EPOCHS * (STEPS + BATCHES) + 1):
        trainer = MAKERS[name](tmp_path / "run")
        trainer._keeper._deadline = trainer._keeper.poll._deadline = Deadline(-3600)
        seen, attempts = count_batches(trainer), attempts + 1
        try:
            found = ended(trainer, tmp_path / "run")
            break
        except InterruptedRunError:
            batches += len(seen)
    assert found == expected
    assert batches == EPOCHS * BATCHES
    assert attempts == EPOCHS * (STEPS + BATCHES) + 1
    told = [line for line in said if "time for one step" in line]
    assert len(told) == attempts
    assert re.match(r"WARNING the deadline is 20\d\d-.*: time for one step.* walltime", told[0])


def test_a_deadline_is_told_of_where_it_is_too_near(tmp_path: Path, said: list[str]) -> None:
    """Once: at the start, or when the first step was too long; not where there is time."""
    for left, at_start, near in ((None, 0, 0), (9000, 0, 0), (5, 1, 1), (-5, 1, 1), (11, 0, 1)):
        said.clear()
        trainer = make_trainer(tmp_path / f"{left}")
        keeper = trainer._keeper
        keeper._deadline = keeper.poll._deadline = Deadline(left)
        begin = keeper.begin
        told: list[int] = []

        def began(begin: Callable[[], None] = begin, told: list[int] = told) -> None:
            begin()
            told.append(sum("the deadline is" in line for line in said))

        keeper.begin = began  # type: ignore[method-assign]
        keeper._deadline.note_save(1.0)  # with which 11 seconds are too few
        try:
            trainer.train(1)
        except InterruptedRunError:
            assert near
        assert told == [at_start]
        assert sum("the deadline is" in line for line in said) == near, left


def stopped(folder: Path, done: int = 2, kind: Callable[[], nn.Module] = Own) -> Trainer:
    """A run that was stopped in its first validation, after so many batches."""
    trainer = of(kind)(folder)
    stop_after(trainer, STEPS + done)
    with pytest.raises(InterruptedRunError):
        trainer.train(EPOCHS, 0)
    return trainer


def change(folder: Path, **changes: Any) -> None:
    """Write the state of a folder with other values."""
    values = torch.load(folder / "model_resume.pt", weights_only=True)
    Checkpoints(folder).save(SavedState(**values | changes))


def test_on_other_ranks_it_begins_anew(tmp_path: Path, said: list[str]) -> None:
    """Their shares are others. It says so."""
    expected = ended(of(Own)(tmp_path / "straight"), tmp_path / "straight")
    part = stopped(tmp_path / "run").run.validated.state({})
    change(tmp_path / "run", validation=part | {"ranks": 2})
    trainer = of(Own)(tmp_path / "run")
    seen = count_batches(trainer)
    assert ended(trainer, tmp_path / "run") == expected
    assert len(seen) == EPOCHS * BATCHES
    line = "INFO resumed: epoch 1, after step 4; validation begins anew, on another number of ranks"
    assert line in said


def test_a_state_of_the_format_before_goes_on(tmp_path: Path) -> None:
    """It only has nothing of a validation."""
    expected = ended(of(Own)(tmp_path / "straight"), tmp_path / "straight")
    stopped(tmp_path / "run")
    change(tmp_path / "run", validation={}, format=5)
    trainer = of(Own)(tmp_path / "run")
    seen = count_batches(trainer)
    assert ended(trainer, tmp_path / "run") == expected
    assert (len(seen), len(trainer.run.history)) == (EPOCHS * BATCHES, EPOCHS)
    assert not list((tmp_path / "run").glob("model_resume.format*"))


def test_its_seconds_add_up(tmp_path: Path) -> None:
    """Those of the first attempt are in the epoch and in its line, as kept."""

    class Slow(Own):
        def forward(self, rows: Tensor) -> Tensor:
            time.sleep(0 if self.training else 0.1)
            return super().forward(rows)

    stopped(tmp_path, 3, Slow)
    seconds = of(Slow)(tmp_path).train(EPOCHS, 0)["seconds"]
    assert all(0.4 < one < 0.9 for one in seconds), seconds
    first, second = map(json.loads, (tmp_path / "attempts.jsonl").read_text().splitlines())
    assert first["kept_seconds"] > 0.3
    assert first["kept_seconds"] + second["kept_seconds"] == pytest.approx(sum(seconds))


def test_a_bar_starts_at_the_right_batch(tmp_path: Path) -> None:
    """And ends full."""
    stopped(tmp_path, 3)
    trainer = of(Own)(tmp_path)
    trainer._keeper.resume(StoppingRule(EPOCHS, 0, True))
    progress = Progress(disable=True)
    task = progress.add_task("validation", total=BATCHES)
    trainer.train_epoch()
    trainer.validate(progress, task)
    assert progress.tasks[0].completed == BATCHES


def test_a_validation_that_is_asked_for_again_is_a_new_one(tmp_path: Path) -> None:
    """Of the weights as they are by then."""
    trainer = of(Own)(tmp_path)
    seen = count_batches(trainer)
    first = trainer.validate()
    with torch.no_grad():
        trainer.model.head.bias.add_(1)
    assert trainer.validate()[0] != first[0]
    assert len(seen) == 2 * BATCHES


def test_a_parameter_that_validation_moves_is_still_refused(tmp_path: Path) -> None:
    """Also where it moved before the stop, and not again: nothing of that is kept."""

    class Moves(Own):
        def forward(self, rows: Tensor) -> Tensor:
            if not self.training and not hasattr(self, "moved"):
                self.moved = True
                with torch.no_grad():
                    self.head.weight.mul_(0.5)
            return super().forward(rows)

    stopped(tmp_path, 2, Moves)
    assert torch.load(tmp_path / "model_resume.pt", weights_only=True)["validation"] == {}
    with pytest.raises(ModelError, match="validation changes its parameter"):
        of(Moves)(tmp_path).train(EPOCHS, 0)


def test_inspect_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Place and size."""
    stopped(tmp_path, 3)
    assert cli.main(["inspect", str(tmp_path / "model_resume.pt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "place       0 epochs finished, and 4 steps, and 3 batches of validation" in lines
    assert f"size        validation: {3 * 8 * 4} bytes of tensors" in lines


def test_a_copy_is_not_changed_by_the_next_batch(tmp_path: Path) -> None:
    """It is written beside the validation."""
    trainer = stopped(tmp_path)
    copy = copy_of(trainer.run.capture(trainer.recipe))
    before = copy.validation["outputs"].clone()
    trainer.run.validated.add(torch.ones(8, 1))
    trainer.run.validated._outputs.zero_()  # type: ignore[union-attr]
    assert torch.equal(copy.validation["outputs"], before)


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": None},
        {"steps": "2"},
        {"seconds": 1},
        {"outputs": torch.zeros(3)},
        {"outputs": torch.zeros(16, 1, dtype=torch.float64)},
        {"network": []},
    ],
)
def test_what_is_no_part_of_a_validation_is_no_state(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """Sealed or not."""
    part = stopped(tmp_path).run.validated.state({})
    assert problem_of(part) is None
    assert "validation has no" in (problem_of(part | changes) or "")


@dataclass(frozen=True)
class InThreads(Distributed):
    """One of several ranks that are threads."""

    barrier_: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    box: dict[int, Any] = field(default_factory=dict)

    def gather(self, value: Any) -> list[Any]:
        """As between processes."""
        self.box[self.rank] = value
        self.barrier_.wait(10)
        found = [self.box[rank] for rank in range(self.world_size)]
        self.barrier_.wait(10)
        return found

    def gather_rows(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """As between processes."""
        assert len(rows) == sizes[self.rank]
        return torch.cat(self.gather(rows))


def on_ranks(world_size: int, work: Callable[[InThreads], Any]) -> list[Any]:
    """Return what each rank has found."""
    first = InThreads(0, world_size, barrier_=threading.Barrier(world_size))
    found: dict[int, Any] = {}

    def one(rank: int) -> None:
        found[rank] = work(replace(first, rank=rank))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[rank] for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 23])
def test_each_rank_takes_its_own_rows_back(world_size: int, num_rows: int) -> None:
    """Ranks without any row, too; wherever it was stopped."""
    rows = DATA.splits["validation"][:num_rows]

    def predict(validated: Validated, steps: int) -> None:
        for _ in range(steps):
            part = torch.tensor(validated.next_rows())
            outputs = torch.stack([part, part * 0.1, -part], 1).float()
            validated.add(outputs if len(part) else None)

    def work(ranks: InThreads) -> Any:
        new = Validated(rows, 3, ranks)
        found = []
        for steps in range(new.num_steps + 1):
            before, after = Validated(rows, 3, ranks), Validated(rows, 3, ranks)
            predict(before, steps)
            state = before.state({})
            assert bool(state) == (steps > 0)
            after.load(ranks.gather(state)[0])
            assert after.steps == steps
            predict(after, after.num_steps - steps)
            found.append(after.gather())
            assert problem_of(state) is None
            assert ranks.gather(before.state({"rest": {}} if ranks.rank == 1 else {}))[0] == {} or (
                world_size == 1 and steps
            )
        return found

    expected = torch.tensor(rows)
    for found in on_ranks(world_size, work):
        for one in found:
            assert torch.equal(one, torch.stack([expected, expected * 0.1, -expected], 1).float())


def test_a_validation_of_other_weights_is_none_of_the_next_epoch(tmp_path: Path) -> None:
    """One that was called before any training, and stopped."""
    whole = make_trainer(tmp_path / "whole", DATA)
    expected = whole.train(1)
    trainer = make_trainer(tmp_path / "stopped", DATA)
    stop_after(trainer, 2)
    with pytest.raises(InterruptedRunError):
        trainer.validate()
    trainer = make_trainer(tmp_path / "stopped", DATA)
    assert trainer.train(1)["val_loss"] == expected["val_loss"]
