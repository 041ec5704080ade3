import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_run import make_trainer, small_config, small_data, study_config, study_data
from torch.utils._python_dispatch import TorchDispatchMode

from outlast.data.dataset import DataSet
from outlast.data.sampling import epoch_order
from outlast.data.store import open_data, prepare
from outlast.distributed import Distributed
from outlast.errors import DataError, ModelError, NonFiniteLossError, RepeatedFailureError
from outlast.sections import Config, DataSection
from outlast.train.trainer import Trainer

ROW = 5


def spoilt() -> DataSet:
    """Data with one row of infinities among the training rows."""
    data = small_data()
    rows = data.inputs["x"].copy()
    rows[ROW] = [np.inf, -np.inf, np.inf, -np.inf]
    return DataSet.from_arrays({"x": rows}, data.label, data.splits, data.classes)


def seed_with_bad_step(step: int, batch_size: int = 8) -> int:
    """A seed under which the spoilt row falls into this step of the first epoch."""
    for seed in range(100):
        order = epoch_order(np.arange(30), seed, 0).tolist()
        if order.index(ROW) // batch_size == step:
            return seed
    raise AssertionError("no seed")


def test_batch_norm_that_will_meet_one_row_is_refused_at_the_start(tmp_path: Path) -> None:
    """29 rows in batches of 7 end in one row: said before the first step, with what to change."""
    trainer = make_trainer(tmp_path, small_data(train=29), batch_size=7)
    trainer.model.body = torch.nn.Sequential(trainer.model.body, torch.nn.BatchNorm1d(8))
    with pytest.raises(ModelError, match=r"one row .*29 rows in batches of 7 .*batch_size"):
        trainer.train(1)
    assert trainer.run.position.step == 0
    assert int(trainer.model.body[1].num_batches_tracked) == 0, "tried on a copy"


@pytest.mark.parametrize("step", [0, 2, 3])
@pytest.mark.parametrize("every_seconds", [0, 1e6])
def test_a_non_finite_loss_names_step_rate_and_rows(
    tmp_path: Path, step: int, every_seconds: float
) -> None:
    """Found at a save or at the end of the epoch, the first bad step is named with its rows."""
    seed = seed_with_bad_step(step)
    config = small_config(every_seconds, seed=seed)
    with pytest.raises(NonFiniteLossError) as caught:
        make_trainer(tmp_path, spoilt(), config).train(3)
    message = str(caught.value)
    assert f"not finite at step {step + 1} of epoch 1, learning rate 0.05, rows [" in message
    rows = json.loads(message[message.index("[") : message.index("]") + 1])
    order = epoch_order(np.arange(30), seed, 0)
    assert rows == order[8 * step : 8 * step + 8].tolist()
    assert ROW in rows
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("failed", message)
    assert not (tmp_path / "history.json").exists()


def test_the_last_good_state_stays_on_the_disk(tmp_path: Path) -> None:
    """No state with NaN is ever written: the file is that of the step before."""
    config = small_config(0, seed=seed_with_bad_step(2))
    with pytest.raises(NonFiniteLossError, match="step 3 of epoch 1"):
        make_trainer(tmp_path, spoilt(), config).train(3)
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 2)
    assert all(value.isfinite().all() for value in state["weights"].values())
    assert all(np.isfinite(list(rank["sums"].values())).all() for rank in state["sums"])


@pytest.mark.parametrize("every_seconds", [0, 1e6])
def test_a_failure_that_would_come_again_is_refused(tmp_path: Path, every_seconds: float) -> None:
    """With the same message, before a step; not once something has changed, or been removed."""
    config = small_config(every_seconds, seed=seed_with_bad_step(2))
    with pytest.raises(NonFiniteLossError) as first:
        make_trainer(tmp_path, spoilt(), config).train(3)
    before = (tmp_path / "failure.json").read_bytes()
    for _ in range(2):
        trainer = make_trainer(tmp_path, spoilt(), config)
        start = 2 if every_seconds == 0 else 0
        with pytest.raises(RepeatedFailureError) as again:
            trainer.train(3)
        assert trainer.run.position.step == start
        assert str(again.value).startswith(f"{first.value} (an earlier attempt ended so")
        assert str(tmp_path / "failure.json") in str(again.value)
        assert (tmp_path / "failure.json").read_bytes() == before
    slower = small_config(every_seconds, seed=seed_with_bad_step(2), learning_rate=0.01)
    with pytest.raises(NonFiniteLossError):
        make_trainer(tmp_path, spoilt(), slower).train(3)
    with pytest.raises(RepeatedFailureError):
        make_trainer(tmp_path, spoilt(), slower).train(3)
    (tmp_path / "failure.json").unlink()
    with pytest.raises(NonFiniteLossError):
        make_trainer(tmp_path, spoilt(), slower).train(3)
    make_trainer(tmp_path, config=slower).train(3)  # other data
    assert not (tmp_path / "failure.json").exists(), "forgotten at the end"


def test_an_attempt_that_may_do_better_is_never_refused(tmp_path: Path) -> None:
    """After a failure of the disk or of an unknown kind, and after progress since a failure."""
    trainer = make_trainer(tmp_path)
    trainer.model.forward = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        trainer.train(3)
    assert not (tmp_path / "failure.json").exists()
    seed = seed_with_bad_step(3)
    with pytest.raises(NonFiniteLossError):
        make_trainer(tmp_path, spoilt(), small_config(1e6, seed=seed)).train(3)
    # the failure came from step 0; an attempt that saves on its way gets further, and is the first
    # to fail from there
    (tmp_path / "kept").write_bytes((tmp_path / "failure.json").read_bytes())
    (tmp_path / "failure.json").unlink()
    with pytest.raises(NonFiniteLossError):
        make_trainer(tmp_path, spoilt(), small_config(0, seed=seed)).train(3)
    (tmp_path / "kept").replace(tmp_path / "failure.json")
    with pytest.raises(NonFiniteLossError):
        make_trainer(tmp_path, spoilt(), small_config(0, seed=seed)).train(3)
    for content in ("", "{", "[]", "{}", "[" * 100_000, "NaN"):
        (tmp_path / "failure.json").write_text(content)
        with pytest.raises(NonFiniteLossError):
            make_trainer(tmp_path, spoilt(), small_config(0, seed=seed)).train(3)


class Kink(torch.nn.Module):
    """At its n-th training pass the loss is as ever, and the gradient NaN: the root of zero."""

    def __init__(self, network: torch.nn.Module, at: int) -> None:
        super().__init__()
        self.network, self.at = network, at
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(rows)
        if self.training:
            self.passes += 1
            if int(self.passes) == self.at:
                logits = logits + (logits - logits).square().sum(1, keepdim=True).sqrt()
        return logits


def kinked(folder: Path, at: int, **keys: Any) -> Trainer:
    """A trainer whose gradient is NaN at this step, counted from 1 over all epochs."""
    trainer = make_trainer(folder, **keys)
    trainer.study.network = trainer.model = Kink(trainer.model, at)
    return trainer


@pytest.mark.parametrize("at", [1, 3, 4, 6, 12])
@pytest.mark.parametrize("every_seconds", [0, 1e6])
@pytest.mark.parametrize("validation", [12, 0])
def test_a_gradient_that_is_not_finite_is_named_before_anything_is_saved(
    tmp_path: Path, at: int, every_seconds: float, validation: int
) -> None:
    """Its step and rows, though its loss is as ever: no file has a weight of the step in it."""
    data = small_data(validation=validation)
    with pytest.raises(NonFiniteLossError) as caught:
        kinked(tmp_path, at, data=data, config=small_config(every_seconds)).train(3)
    epoch, step = divmod(at - 1, 4)
    expected = f"the gradient is not finite at step {step + 1} of epoch {epoch + 1}, learning rate"
    assert str(caught.value).startswith(expected)
    assert not (tmp_path / "history.json").exists()
    for path in tmp_path.glob("model_*.pt"):
        state = torch.load(path, weights_only=True)
        assert all(value.isfinite().all() for value in state["weights"].values()), path
    if every_seconds == 0 and at > 1:
        state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
        assert (state["epoch"], state["step"]) == (epoch, step)


@pytest.mark.parametrize("every_seconds", [0, 1e6])
def test_a_weight_beyond_its_dtype_is_never_saved(tmp_path: Path, every_seconds: float) -> None:
    """Loss and gradient of the last step were finite, and the step was too long."""
    trainer = make_trainer(tmp_path, config=small_config(every_seconds))
    real = trainer._train_step

    def leap(rows: Any) -> None:
        real(rows)
        if trainer.run.position.step == 3:
            next(trainer.study.parameters()).data[0, 0] = torch.inf

    trainer._train_step = leap  # type: ignore[method-assign]
    with pytest.raises(NonFiniteLossError, match=r"a weight is not finite after step [34] of"):
        trainer.train(1)
    for path in tmp_path.glob("model_*.pt"):
        state = torch.load(path, weights_only=True)
        assert all(value.isfinite().all() for value in state["weights"].values()), path


@pytest.mark.parametrize("metric", ["val_acc", "val_f1", "val_loss", "auto"])
def test_a_network_that_gives_nan_is_never_the_best(tmp_path: Path, metric: str) -> None:
    """Argmax of NaN is a class, and often the right one: nothing of it counts (story 11)."""

    class Blind(torch.nn.Module):
        """NaN in validation, from its second epoch on."""

        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__()
            self.network = network
            self.register_buffer("epochs", torch.zeros(()))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.network(rows)
            if self.training or len(rows) < 8:
                return logits
            self.epochs += 1
            return logits if self.epochs == 1 else logits * float("nan")

    data, config = small_data(validation=14), small_config(batch_size=8, selection_metric=metric)
    trainer = make_trainer(tmp_path, data, config)
    trainer.study.network = trainer.model = Blind(trainer.model)
    history = trainer.train(3)
    assert history["best"]["epoch"] == 1
    for key in ("val_loss", "val_acc", "val_f1", "val_auc", "val_selection"):
        assert history[key][0] is not None
        assert history[key][1:] == [None, None], key


class CountWaits(TorchDispatchMode):
    """Counts what makes the host wait for a device: scalars read, copies to the host."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
        self.count += "_local_scalar_dense" in str(function) or "nonzero" in str(function)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ],
)
@pytest.mark.parametrize(
    "config",
    [
        small_config(),
        small_config(grad_accum_split=3),
        small_config(max_grad_norm=0.1, precision="bfloat16"),
        study_config(),
    ],
    ids=["plain", "parts", "clipped", "study"],
)
def test_waits_for_the_device_do_not_grow_with_the_batches(
    tmp_path: Path, config: Config, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch of 100 batches reads as few values from the device as one of 5."""
    calls = [0]
    for name in ("tolist", "cpu", "numpy", "item"):
        real = getattr(torch.Tensor, name)

        def counted(self, *args, real=real, **keywords):  # type: ignore[no-untyped-def]
            calls[0] += 1
            return real(self, *args, **keywords)

        monkeypatch.setattr(torch.Tensor, name, counted)
    waits = []
    for train in (40, 800):
        ranks = Distributed(device=torch.device(device))
        folder = tmp_path / str(train)
        trainer = make_trainer(folder, study_data(train=train), config, distributed=ranks)
        calls[0] = 0
        with CountWaits() as mode:
            trainer.train_epoch()
        waits.append((calls[0], mode.count))
    assert waits[0] == waits[1]
    assert 0 < sum(waits[0]) < 10, "the sums of the epoch are read, and counted here"


def test_data_changed_under_the_run_are_in_no_state(tmp_path: Path) -> None:
    """The state before the change stays; the next attempt goes on from it with the old values."""
    source = tmp_path / "npy"
    source.mkdir()
    rows = small_data().inputs["x"]
    np.save(source / "x.npy", rows)
    np.save(source / "label.npy", np.arange(len(rows)) % 2)
    section = DataSection.model_validate({"source": str(source), "split": {"test": 0}})
    prepare(section, tmp_path / "data")
    trainer = make_trainer(tmp_path / "run", open_data(tmp_path / "data"))
    expected = make_trainer(tmp_path / "straight", open_data(tmp_path / "data")).train(3)

    def spoil(*_: object) -> None:
        if (trainer.run.position.epoch, trainer.run.position.step) == (1, 2):
            with (source / "x.npy").open("r+b") as file:
                file.seek(-400, 2)
                file.write(bytes(400))

    trainer.model.register_forward_pre_hook(spoil)
    with pytest.raises(DataError, match=r"x\.npy was changed while this run was reading it"):
        trainer.train(3)
    state = torch.load(tmp_path / "run" / "model_resume.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (1, 0)
    with pytest.raises(DataError, match="other values than when it was prepared"):
        open_data(tmp_path / "data")
    np.save(source / "x.npy", rows)
    found = make_trainer(tmp_path / "run", open_data(tmp_path / "data")).train(3)
    assert found["train_loss"] == expected["train_loss"]


def test_a_failure_of_the_network_is_booked_as_one(tmp_path: Path) -> None:
    """An exception of the user's own code is `failed` in status.json, with its reason."""
    trainer = make_trainer(tmp_path)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("of the user")

    trainer.model.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        trainer.train(1)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("failed", "ZeroDivisionError: of the user")
