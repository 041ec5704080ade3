"""Everything switched on at once: heads, label noise, clipping, warm-up, bfloat16, accumulation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import Net, make_trainer, study_config, study_data, weights
from test_resume import best_of, numbers, stop_after
from torch.nn import functional

from outlast.config import parse
from outlast.data.sampling import batch_of, epoch_order
from outlast.errors import ConfigError, InterruptedRunError
from outlast.model.file import load_model_file
from outlast.model.heads import heads_from
from outlast.objective.build import build_objective
from outlast.objective.losses import class_weights, noise_corrected_bce
from outlast.train import clipping
from outlast.train.run import add_heads, build_optimizer
from outlast.train.trainer import Trainer

KEYS = {"train_adv_loss", "train_adv_acc", "train_reg_loss", "val_reg_loss"}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("boundaries", [1, 3, 5, 6, 9, 16])
def test_stopped_anywhere_a_study_ends_the_same(
    tmp_path: Path, boundaries: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads, clip window, plateau and strength continue: new objects end with the same bits."""
    monkeypatch.setattr(clipping, "WINDOW", 6)  # so that the limit bites
    data, config = study_data(), study_config(precision=precision)
    straight = make_trainer(tmp_path / "straight", data, config, dropout=0.3)
    expected = straight.train(4)
    first = make_trainer(tmp_path / "run", data, config, dropout=0.3)
    stop_after(first, boundaries)
    with pytest.raises(InterruptedRunError):
        first.train(4)
    second = make_trainer(tmp_path / "run", data, config, dropout=0.3)
    found = second.train(4)
    assert torch.equal(weights(second), weights(straight))
    assert torch.equal(best_of(tmp_path / "run"), best_of(tmp_path / "straight"))
    assert numbers(found) == numbers(expected)
    assert set(found) >= KEYS


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_every_split_of_a_batch_takes_the_same_steps(
    tmp_path: Path, dtype: torch.dtype, tolerance: float
) -> None:
    """1 to 7 parts, with weights and masks, also for batches that do not divide (story 38)."""
    data, ends = study_data(train=23), {}
    for split in range(1, 8):
        config = study_config(grad_accum_split=split, batch_size=10, optimizer="sgd")
        trainer = make_trainer(tmp_path, data, config, dtype=dtype)
        trainer.train_epoch()
        trainer.train_epoch()
        ends[split] = weights(trainer)
    for split, end in ends.items():
        assert float((end - ends[1]).abs().max() / ends[1].abs().max()) < tolerance, split


def test_the_gradient_is_that_of_the_objective_written_out(tmp_path: Path) -> None:
    """Main loss + adversary + weight x regression, each over its own rows of the whole batch."""
    data = study_data(train=24)
    config = study_config(grad_accum_split=4, batch_size=12, max_grad_norm=0, augment={})
    trainer = make_trainer(tmp_path, data, config, dtype=torch.float64)
    order = epoch_order(data.splits["train"], 0, 0)
    rows = batch_of(order, 0, 12)
    label = torch.from_numpy(data.label[rows])
    confound = torch.from_numpy(data.roles.values["confound"][rows])
    target = torch.from_numpy(data.roles.values["target"][rows]).double()
    rates = torch.tensor([0.0, 0.2], dtype=torch.float64)
    rate = rates[torch.from_numpy(data.roles.values["noise_group"][rows])]
    counts = np.bincount(data.label[data.splits["train"]]).tolist()
    weight = class_weights("auto", counts)
    assert weight is not None
    outputs = trainer.study(torch.from_numpy(data.inputs["x"][rows]), strength=trainer.strength)
    main = noise_corrected_bce(outputs.logits, label, rate, 0.05) * weight.double()[label]
    known, valid = confound >= 0, ~target.isnan()
    assert 0 < int(known.sum()) < 12
    assert 0 < int(valid.sum()) < 12
    train = data.roles.values["target"][data.splits["train"]].astype(np.float64)
    scaled = (target - np.nanmean(train)) / np.nanstd(train)
    loss = (
        main.sum() / weight.double()[label].sum()
        + functional.cross_entropy(outputs.confound[known], confound[known])
        + 0.3 * functional.mse_loss(outputs.target[valid], scaled[valid])
    )
    parameters = list(trainer.study.parameters())
    expected = torch.autograd.grad(loss, parameters)
    trainer._train_step(rows)
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sampling", ["balance_labels", "balance_groups"])
def test_a_balanced_run_draws_alike_and_resumes(tmp_path: Path, sampling: str) -> None:
    """The rare category comes as often as the other, and no kill draws anew."""
    data = study_data(train=40)
    data.label[:40] = np.arange(40) < 5
    data.roles.values["noise_group"][:40] = np.arange(40) < 5
    content = study_config().model_dump(mode="json") | {"loss": {}}
    content["training"] |= {"sampling": sampling, "selection_metric": "val_loss"}
    config = parse(content)
    straight = make_trainer(tmp_path / "straight", data, config)
    drawn = straight._order()
    assert 10 < (drawn < 5).sum() < 30
    expected = straight.train(2)
    first = make_trainer(tmp_path / "run", data, config)
    stop_after(first, 7)
    with pytest.raises(InterruptedRunError):
        first.train(2)
    second = make_trainer(tmp_path / "run", data, config)
    assert numbers(second.train(2)) == numbers(expected)
    assert torch.equal(weights(second), weights(straight))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("unknown", [False, True])
def test_the_gradient_of_a_batch_does_not_depend_on_its_parts(
    tmp_path: Path, dtype: torch.dtype, tolerance: float, unknown: bool
) -> None:
    """1 to 7 parts of 10 rows, of which some or all have neither confound nor target (story 38)."""
    gradients = {}
    for split in range(1, 8):
        data = study_data(train=23)
        config = study_config(grad_accum_split=split, max_grad_norm=0, learning_rate=1e-30)
        trainer = make_trainer(tmp_path, data, config, dtype=dtype)
        if unknown:  # in this batch
            data.roles.values["confound"][:10] = -1
            data.roles.values["target"][:10] = np.nan
        trainer._train_step(data.splits["train"][:10])
        gradients[split] = torch.cat(trainer._step.gradients.flats).clone()
    largest = gradients[1].abs().max()
    assert bool(gradients[1].isfinite().all())
    for split, gradient in gradients.items():
        assert float((gradient - gradients[1]).abs().max() / largest) < tolerance, split


def test_history_and_log_tell_what_the_heads_did(tmp_path: Path, said: list[str]) -> None:
    """Losses and accuracy over known and valid rows, lambda as it grows; null-free JSON."""
    data = study_data()
    history = make_trainer(tmp_path, data, study_config()).train(3, 0)
    stored = json.loads((tmp_path / "history.json").read_text())
    for key in KEYS:
        assert stored[key] == history[key]
        assert len(stored[key]) == 3
        assert all(math.isfinite(value) for value in stored[key])
    known = int((data.roles.values["confound"][data.splits["train"]] >= 0).sum())
    assert history["train_adv_acc"][0] * known == pytest.approx(
        round(history["train_adv_acc"][0] * known)
    )
    lines = [line for line in said if line.startswith("INFO epoch ")]
    assert "adversary loss " in lines[0]
    assert "lambda 0.25" in lines[0]
    assert "lambda 0.5" in lines[1]
    assert "lambda 0.5" in lines[2]
    assert "regression loss " in lines[0]
    assert "lr 0.025" in lines[0]


def test_a_run_without_heads_has_no_keys_of_theirs(tmp_path: Path) -> None:
    """Nothing is named that was not done."""
    history = make_trainer(tmp_path, study_data()).train(1)
    assert not KEYS & set(history)


def test_the_recipe_has_the_content_of_the_roles_that_are_used(tmp_path: Path) -> None:
    """A state does not go on with another confound; a role that nothing reads is no part of it."""
    data = study_data()
    used = make_trainer(tmp_path, data, study_config()).recipe
    for role in ("noise_group", "confound", "target"):
        assert used[f"data.content.{role}"] == data.role_content[role]
    idle = make_trainer(tmp_path, data).recipe
    assert [key for key in idle if key.startswith("data.content")] == ["data.content"]
    assert idle["data.content"] == used["data.content"]


def test_the_model_file_has_the_heads_beside_the_network(tmp_path: Path) -> None:
    """The network loads strictly by itself."""
    trainer = make_trainer(tmp_path, study_data(), study_config())
    trainer.train(1)
    content = torch.load(tmp_path / "model_best.pt", weights_only=True)
    trainer.model.load_state_dict(content["weights"], strict=True)
    assert {key.split(".")[0] for key in content["heads"]} == {"adversary", "regression"}
    assert content["config"]["adversary"]["strength"] == 0.5


def test_no_target_and_no_confound_in_a_whole_epoch(tmp_path: Path) -> None:
    """Nothing known, nothing learned, nothing NaN."""
    data = study_data()
    trainer = make_trainer(tmp_path, data, study_config())
    data.roles.values["confound"][:] = -1
    data.roles.values["target"][:] = np.nan
    before = weights(trainer)
    history = trainer.train(1)
    assert history["train_adv_loss"] == history["train_reg_loss"] == [None]
    assert bool(weights(trainer).isfinite().all())
    heads = [p for name, p in trainer.study.named_parameters() if not name.startswith("network")]
    count = sum(parameter.numel() for parameter in heads)
    drift = (weights(trainer)[-count:] - before[-count:]).abs().max()
    assert float(drift) == 0.0


@pytest.mark.parametrize(("role", "key"), [("confound", "adversary"), ("target", "regression")])
def test_a_head_that_could_learn_nothing_is_refused(tmp_path: Path, role: str, key: str) -> None:
    """No training row has what it would learn."""
    data = study_data()
    data.roles.values[role][: len(data.splits["train"])] = -1 if role == "confound" else np.nan
    with pytest.raises(ConfigError, match=rf"data\.{role}: .* in every training row; set {key}"):
        make_trainer(tmp_path, data, study_config())


def test_validation_knows_neither_noise_of_training_nor_strength(tmp_path: Path) -> None:
    """Scores are those of the network alone on the whole split; the error is standardized."""
    data = study_data()
    trainer = make_trainer(tmp_path, data, study_config())
    trainer.train(2, 0)
    rows = data.splits["validation"]
    trainer.study.eval()
    with torch.no_grad():
        outputs = trainer.study(torch.from_numpy(data.inputs["x"][rows]))
    target = torch.from_numpy(data.roles.values["target"][rows]).double()
    scaled = (target - trainer.objective.target_mean) / trainer.objective.target_std
    valid = ~target.isnan()
    expected = functional.mse_loss(outputs.target.double()[valid], scaled[valid])
    assert trainer.run.history.rows[-1]["val_reg_loss"] == pytest.approx(float(expected))
    correct = (outputs.logits[:, 0] > 0).long() == torch.from_numpy(data.label[rows])
    assert trainer.run.history.rows[-1]["val_acc"] == pytest.approx(float(correct.float().mean()))


def test_heads_change_nothing_of_a_network_that_they_do_not_train(tmp_path: Path) -> None:
    """With a weight and a strength next to 0 the network is that of a run without heads."""
    data = study_data()
    keys = {"grad_accum_split": 1, "quantile_grad_clip": False, "max_grad_norm": 0.0}
    config = study_config(**keys).model_copy()
    tiny = config.model_copy(
        update={
            "adversary": config.adversary.model_copy(update={"strength": 1e-30}),
            "regression": config.regression.model_copy(update={"weight": 1e-30}),
        }
    )
    none = config.model_copy(
        update={
            "adversary": config.adversary.model_copy(update={"strength": 0.0}),
            "regression": config.regression.model_copy(update={"weight": 0.0}),
        }
    )
    ends = []
    for name, choice in (("tiny", tiny), ("none", none)):
        trainer = make_trainer(tmp_path / name, data, choice)
        trainer.train(2)
        ends.append(trainer.model.state_dict())
    for key in ends[0]:
        assert torch.equal(ends[0][key], ends[1][key]), key


class Precise(Net):
    """A network that is not in float32, as its constructor has made it."""

    def __init__(self, outputs: int, dtype: torch.dtype) -> None:
        super().__init__(outputs)
        self.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_any_precision_has_heads(tmp_path: Path, dtype: torch.dtype) -> None:
    """The heads are in float32; both are trained, stopped, resumed and read from the model file."""
    config, data, trainers = study_config(), study_data(), []
    for name in ("straight", "stopped", "stopped"):
        objective = build_objective(config, data)
        torch.manual_seed(0)
        model = add_heads(Precise(objective.num_outputs, dtype), config, data, objective)
        (tmp_path / name).mkdir(exist_ok=True)
        trainer = Trainer(
            model=model,
            data=data,
            objective=objective,
            optimizer=build_optimizer(config.training, model),
            config=config,
            folder=tmp_path / name,
        )
        trainers.append(trainer)
    straight, stopped, resumed = trainers
    before = straight.study.adversary.layers[0].weight.clone()  # type: ignore[union-attr,index]
    straight.train(2, 0)
    stop_after(stopped, 6)
    with pytest.raises(InterruptedRunError):
        stopped.train(2, 0)
    resumed.train(2, 0)
    assert torch.equal(weights(resumed), weights(straight))
    after = straight.study.adversary.layers[0].weight  # type: ignore[union-attr,index]
    assert not torch.equal(after, before)
    saved = load_model_file(tmp_path / "straight" / "model_best.pt")
    adversary, _ = heads_from(saved.heads, unit=False)
    assert adversary(torch.zeros(2, 8, dtype=dtype), 0.0).isfinite().all()
