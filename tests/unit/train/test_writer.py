"""Writing beside the training: nothing waits, nothing is mixed up, nothing is lost."""

import io
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import make_trainer, small_config, small_data, study_config, study_data

from outlast.errors import InterruptedRunError, LostClaimError
from outlast.files import write_atomically
from outlast.train import checkpoint
from outlast.train.state import FORMAT, SavedState
from outlast.train.trainer import Trainer
from outlast.train.writer import Writer, copy_of


class Disk:
    """A disk that takes its time, or fails; counts what it was asked."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error
        self.writes = self.at_once = self.most_at_once = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        self.writes += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.seconds)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        write_atomically(*arguments, **keywords)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of the states."""
    slow = Disk()
    monkeypatch.setattr(checkpoint, "write_atomically", slow)
    return slow


def long_epoch(folder: Path, every_seconds: float) -> Trainer:
    """A trainer whose epoch has 400 steps."""
    data = small_data(train=3200)
    return make_trainer(folder, data, small_config(every_seconds, batch_size=8))


def test_no_step_waits_for_a_slow_disk(tmp_path: Path, disk: Disk) -> None:
    """However many saves are due meanwhile, and there is one at a time."""
    disk.seconds = 2.0
    trainer = long_epoch(tmp_path, 0.01)
    boundary, waits = trainer._keeper.at_boundary, []

    def timed(num_steps: int) -> None:
        started = time.monotonic()
        boundary(num_steps)
        waits.append(time.monotonic() - started)

    trainer._keeper.at_boundary = timed  # type: ignore[method-assign]
    trainer.train_epoch()
    assert len(waits) == 400
    assert max(waits) < 1
    trainer._keeper._writer.drain()
    assert disk.most_at_once == 1
    assert (tmp_path / "model_resume.pt").exists()


def test_a_state_is_that_of_its_boundary(tmp_path: Path, disk: Disk) -> None:
    """Whatever training does while it is on its way to the disk."""
    disk.seconds = 0.5
    trainer = make_trainer(tmp_path, study_data(train=400), study_config(0.05, optimizer="sgd"))
    real, seen = trainer.run.capture, {}

    def capture(recipe: Any) -> Any:
        state = real(recipe)
        seen[state.step] = torch.cat([value.flatten() for value in trainer.study.parameters()])
        seen[state.step] = seen[state.step].detach().clone()
        trainer._keeper.poll._every_seconds = 1e9  # no other one: training goes on after it
        return state

    trainer.run.capture = capture  # type: ignore[method-assign]
    trainer.train_epoch()
    trainer._keeper._writer.drain()
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    names = [name for name, _ in trainer.study.named_parameters()]
    found = torch.cat([state["weights"][name].flatten() for name in names])
    assert torch.equal(found, seen[state["step"]])
    now = torch.cat([value.flatten() for value in trainer.study.parameters()])
    assert not torch.equal(found, now), "training has gone on meanwhile"


def test_a_copy_shares_nothing_with_the_run(tmp_path: Path) -> None:
    """Neither tensors nor lists, apart from the best weights, which nobody changes."""
    trainer = make_trainer(tmp_path, study_data(), study_config())
    trainer.train(2)
    state = trainer.run.capture(trainer.recipe)
    copied = copy_of(state)

    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in leaves(item)]
        if isinstance(value, list):
            return [value, *(leaf for item in value for leaf in leaves(item))]
        return [value] if isinstance(value, torch.Tensor) else []

    for key, value in state.as_dict().items():
        ours, theirs = leaves(value), leaves(copied.as_dict()[key])
        assert len(ours) == len(theirs)
        if key != "best_weights":
            assert not {id(leaf) for leaf in ours} & {id(leaf) for leaf in theirs}, key
            tensors = [leaf for leaf in ours if isinstance(leaf, torch.Tensor) and leaf.numel()]
            places = {leaf.data_ptr() for leaf in theirs if isinstance(leaf, torch.Tensor)}
            assert not {leaf.data_ptr() for leaf in tensors} & places, key


def test_a_copy_is_not_written_over_on_its_way(tmp_path: Path) -> None:
    """The next copy takes its memory, and waits for it."""
    trainer, writer = make_trainer(tmp_path, study_data(), study_config()), Writer()
    trainer.train_epoch()
    state = trainer.run.capture(trainer.recipe)
    first = writer.copy(state)
    name = next(name for name, _ in trainer.study.named_parameters())
    before, seen, place = state.weights[name].clone(), [], first.weights[name].data_ptr()

    def write() -> None:
        time.sleep(0.5)
        seen.append(first.weights[name].clone())

    writer.submit(write, lambda _: None)
    with torch.no_grad():
        trainer.study.get_parameter(name).add_(1)
    second = writer.copy(trainer.run.capture(trainer.recipe))
    assert torch.equal(seen[0], before)
    assert torch.equal(second.weights[name], before + 1)
    assert second.weights[name].data_ptr() == place


SAVED = SavedState(FORMAT, {}, 1, 2, 3.0, {}, {}, {}, {}, {}, {}, {}, {}, [], [])
WHOLE = torch.arange(24.0).view(4, 6)
TENSORS = {
    "larger": WHOLE,
    "smaller": WHOLE[:2].clone(),
    "other dtype": WHOLE.int(),
    "transposed": WHOLE.t().contiguous().t(),
    "a slice": WHOLE[:, ::2],
    "expanded": WHOLE[:, :1].expand(4, 6),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 6),
    "sparse": WHOLE.to_sparse(),
    "parameter": torch.nn.Parameter(WHOLE + 1),
    "conjugated": torch.complex(WHOLE, WHOLE).conj(),
    "no tensor": {"a": [1, 2, (3, None)]},
    "longer list": [WHOLE, WHOLE + 1, WHOLE + 2],
    "shorter list": [WHOLE + 3],
    "list of something": (torch.tensor(1), WHOLE, "text"),
}


def bits(value: Any) -> bytes:
    """What a file would hold of it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("old", TENSORS)
@pytest.mark.parametrize("new", TENSORS)
def test_a_copy_is_the_same_in_old_memory_and_in_new(old: str, new: str) -> None:
    """Whatever was there before it: to the bit, strides and all."""
    state = SAVED
    before = copy_of(replace(state, weights={"a": TENSORS[old], "b": WHOLE, "c": WHOLE}))
    # two names of one tensor, as with tied weights, and one name less
    now = replace(state, weights={"b": TENSORS[new], "a": TENSORS[new]})
    assert bits(copy_of(now, before).as_dict()) == bits(copy_of(now).as_dict())


def test_what_is_on_its_way_arrives_at_the_end(tmp_path: Path, disk: Disk) -> None:
    """The run ends when its last state is on the disk."""
    disk.seconds = 0.3
    make_trainer(tmp_path, config=small_config(60)).train(3)
    assert disk.at_once == 0
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (3, 0)


def test_a_signal_waits_for_its_state(tmp_path: Path, disk: Disk) -> None:
    """`the state is saved` is said of a file that is there, though another was on its way."""
    disk.seconds = 0.3
    trainer = long_epoch(tmp_path, 0.01)
    threading.Timer(0.15, trainer._keeper.poll._interrupt._note, (15,)).start()
    with pytest.raises(InterruptedRunError, match="the state is saved") as caught:
        trainer.train(1)
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    assert f"after step {state['step']} of 400" in str(caught.value)
    assert disk.most_at_once == 1


def test_a_signal_does_not_promise_what_the_disk_did_not_take(tmp_path: Path, disk: Disk) -> None:
    """`an older state is kept` is said when the last one was not written."""
    disk.error = OSError(28, "No space left on device")
    trainer = long_epoch(tmp_path, 1e6)
    trainer._keeper.poll._interrupt._note(15)
    with pytest.raises(InterruptedRunError, match="an older state is kept"):
        trainer.train(1)


def test_an_error_waits_for_the_state_before_it(tmp_path: Path, disk: Disk) -> None:
    """A bug in a step does not cost the state that was on its way."""
    disk.seconds = 0.5
    trainer = long_epoch(tmp_path, 0.01)
    real, steps = trainer._train_step, []

    def broken(rows: Any) -> None:
        real(rows)
        steps.append(1)
        if len(steps) == 100:
            raise ZeroDivisionError

    trainer._train_step = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        trainer.train(1)
    assert disk.at_once == 0
    assert torch.load(tmp_path / "model_resume.pt", weights_only=True)["step"] > 0


def test_a_disk_that_fails_beside_the_training_is_told(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning, and training goes on; the next write works again."""
    monkeypatch.setattr(logging.getLogger("outlast"), "propagate", True)
    disk.error = OSError(28, "No space left on device")
    trainer = long_epoch(tmp_path, 0.05)
    trainer.train_epoch()
    trainer._keeper._tell(trainer._keeper._writer.drain)
    assert "state not saved ([Errno 28] No space left on device)" in caplog.text
    assert not (tmp_path / "model_resume.pt").exists()
    disk.error = None
    trainer._keeper.save(wait=True)
    assert (tmp_path / "model_resume.pt").exists()


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an hour at each look: saves come as before, and no seconds are negative."""
    wall = 2e9

    def backwards() -> float:
        nonlocal wall
        wall -= 3600
        return wall

    monkeypatch.setattr(time, "time", backwards)
    history = make_trainer(tmp_path, config=small_config(0.001)).train(3)
    straight = make_trainer(tmp_path / "straight").train(3)
    assert history["train_loss"] == straight["train_loss"]
    assert min(history["seconds"]) >= 0
    assert history["kept_seconds"] >= 0
    assert 0 <= history["lost_seconds"] < 60


def test_a_claim_that_is_lost_beside_the_training_ends_it(tmp_path: Path, disk: Disk) -> None:
    """At the next boundary, without another write."""
    disk.error = LostClaimError("another has it")
    trainer = long_epoch(tmp_path, 0.01)
    with pytest.raises(LostClaimError):
        trainer.train(1)
    assert disk.writes == 1
    assert trainer.run.position.step < 400


def test_a_lost_claim_is_not_learned_at_the_next_save_only(tmp_path: Path, disk: Disk) -> None:
    """That may be a minute later."""
    disk.error = LostClaimError("another has it")
    trainer = long_epoch(tmp_path, 1e6)
    trainer._keeper.save()
    trainer._keeper._writer._job.exception()  # type: ignore[union-attr]
    with pytest.raises(LostClaimError):
        trainer.train_epoch()
    assert trainer.run.position.step == 1


def test_an_error_is_told_once() -> None:
    """By the call that comes next; the writer works on."""
    writer, done = Writer(), []

    def fail() -> None:
        raise ValueError("no")

    writer.submit(fail, done.append)
    with pytest.raises(ValueError, match="no"):
        writer.submit(lambda: None, done.append)
    writer.drain()
    assert done == []
    writer.submit(lambda: time.sleep(0.05), done.append)
    assert writer.is_busy
    writer.drain()
    assert not writer.is_busy
    assert 0.05 <= done[0] < 1


def test_short_epochs_do_not_wait_for_a_slow_disk(tmp_path: Path, disk: Disk) -> None:
    """Thirty epochs of milliseconds, writes of half a second: some are saved, the last one is."""
    expected = make_trainer(tmp_path / "straight").train(30, 0)
    disk.seconds, disk.writes = 0.5, 0
    trainer = make_trainer(tmp_path / "run", config=small_config(1e6))
    started = time.monotonic()
    found = trainer.train(30, 0)
    assert time.monotonic() - started < 30 * 0.5 / 2
    assert 2 <= disk.writes < 15
    assert found["train_loss"] == expected["train_loss"]
    state = torch.load(tmp_path / "run" / "model_resume.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (30, 0)
    assert make_trainer(tmp_path / "run").train(30, 0)["val_loss"] == expected["val_loss"]
