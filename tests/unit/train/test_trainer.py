import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.metrics import f1_score, precision_recall_curve, roc_auc_score, roc_curve
from small_run import make_trainer, small_data, weights

from outlast.data.dataset import DataSet
from outlast.errors import ConfigError
from outlast.model.file import load_model_file
from outlast.train.history import HISTORY_KEYS
from outlast.train.trainer import Trainer

STILL = 1e-12  # a learning rate at which nothing moves


def logits_of(trainer: Trainer, split: str) -> torch.Tensor:
    """Evaluate the network on a split without the trainer."""
    rows = torch.from_numpy(trainer.data.inputs["x"][trainer.data.splits[split]])
    with torch.inference_mode():
        return trainer.model.eval()(rows)


def one_class_data() -> DataSet:
    """A validation split with class 0 only."""
    data = small_data()
    validation = data.splits["validation"]
    return replace(
        data, splits=data.splits | {"validation": validation[data.label[validation] == 0]}
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_an_epoch_returns_loss_and_accuracy_of_its_rows(tmp_path: Path, classes: int) -> None:
    """Means over all rows, the smaller last batch weighted by what it holds."""
    data = small_data(train=29, classes=classes)
    trainer = make_trainer(tmp_path, data, learning_rate=STILL)
    label = torch.from_numpy(data.label[:29])
    logits = logits_of(trainer, "train")
    loss, accuracy = trainer.train_epoch()
    if classes == 2:
        reference = torch.nn.functional.binary_cross_entropy_with_logits(
            logits.squeeze(1), label.float()
        )
        right = (logits.squeeze(1) > 0) == label
    else:
        reference = torch.nn.functional.cross_entropy(logits, label)
        right = logits.argmax(1) == label
    assert loss == pytest.approx(float(reference), rel=1e-6)
    assert accuracy == int(right.sum()) / 29


def test_validation_returns_loss_accuracy_auroc_and_f1(tmp_path: Path) -> None:
    """The four numbers are those of scikit-learn and of the mean loss over the split."""
    trainer = make_trainer(tmp_path, small_data(validation=31))
    trainer.train_epoch()
    logits = logits_of(trainer, "validation").squeeze(1)
    truth = trainer.data.label[trainer.data.splits["validation"]]
    loss, accuracy, auc, f1 = trainer.validate()
    reference = torch.nn.functional.binary_cross_entropy_with_logits(
        logits.double(), torch.from_numpy(truth).double()
    )
    assert loss == pytest.approx(float(reference), rel=1e-7)
    assert accuracy == pytest.approx(float(((logits > 0).numpy() == truth).mean()))
    assert auc == pytest.approx(roc_auc_score(truth, logits.numpy()))
    assert f1 == pytest.approx(f1_score(truth, (logits > 0).numpy()))


def test_without_a_validation_split_validation_is_zeros(tmp_path: Path) -> None:
    """Four zeros, and None in the history; the last weights are the best weights."""
    trainer = make_trainer(tmp_path, small_data(validation=0))
    assert trainer.validate() == (0.0, 0.0, 0.0, 0.0)
    history = trainer.train(3, early_stopping_patience=1)
    assert history["val_loss"] == history["val_auc"] == [None] * 3
    assert history["best"]["epoch"] == 3
    assert history["stopped"] == "completed"
    best = load_model_file(tmp_path / "model_best.pt").weights
    assert torch.equal(torch.cat([value.flatten() for value in best.values()]), weights(trainer))


@pytest.mark.parametrize("data", [small_data(), small_data(classes=3), one_class_data()])
def test_the_history_is_columns_of_one_length(tmp_path: Path, data: DataSet) -> None:
    """Exactly the documented keys, a value per epoch, and JSON without NaN on the disk."""
    history = make_trainer(tmp_path, data).train(4, early_stopping_patience=0)
    assert {key for key, value in history.items() if isinstance(value, list)} == set(HISTORY_KEYS)
    assert {len(history[key]) for key in HISTORY_KEYS} == {4}
    assert history["epoch"] == [1, 2, 3, 4]

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / "history.json").read_text()
    assert json.loads(text, parse_constant=refuse) == history
    assert history["attempts"] == 1
    assert history["kept_seconds"] == pytest.approx(sum(history["seconds"]))
    assert history["lost_seconds"] >= 0


def test_the_best_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    """model_best.pt holds the weights after the epoch that the history calls best."""
    trainer = make_trainer(tmp_path, small_data(noise=3.0), learning_rate=0.3, seed=3)
    after: list[torch.Tensor] = []
    real = trainer.validate

    def validate() -> tuple[float, float, float, float]:
        after.append(weights(trainer).clone())
        return real()

    trainer.validate = validate  # type: ignore[method-assign,assignment]
    history = trainer.train(8, early_stopping_patience=0)
    best = history["best"]["epoch"]
    assert 1 < best < 8, "another seed is needed: the best epoch must be neither first nor last"
    saved = load_model_file(tmp_path / "model_best.pt")
    assert torch.equal(torch.cat([v.flatten() for v in saved.weights.values()]), after[best - 1])
    assert saved.best["val_auc"] == history["val_auc"][best - 1] == max(history["val_auc"])


def test_early_stopping_counts_epochs_without_a_better_metric(
    tmp_path: Path, said: list[str]
) -> None:
    """A metric that stands still ends the run `patience` epochs after the best one."""
    history = make_trainer(tmp_path, learning_rate=STILL).train(20, early_stopping_patience=3)
    assert history["stopped"] == "early_stopping"
    assert history["epoch"] == [1, 2, 3, 4]
    assert history["best"]["epoch"] == 1
    assert "INFO early stopping: no better val_auc for 3 epochs" in said


def test_patience_zero_never_stops(tmp_path: Path) -> None:
    """The same run with patience 0 trains all its epochs."""
    history = make_trainer(tmp_path, learning_rate=STILL).train(9, early_stopping_patience=0)
    assert history["stopped"] == "completed"
    assert len(history["epoch"]) == 9


def test_each_batch_advances_the_bar_by_one(tmp_path: Path) -> None:
    """train_epoch, validate and train move a real rich bar, batch by batch."""
    trainer = make_trainer(tmp_path)
    progress = Progress(console=Console(file=io.StringIO()))
    train, validation = progress.add_task("a", total=4), progress.add_task("b", total=2)
    trainer.train_epoch(progress, train)
    trainer.validate(progress, validation)
    assert [task.completed for task in progress.tasks] == [4, 2]
    whole = Progress(console=Console(file=io.StringIO()))
    make_trainer(tmp_path / "other").train(2, progress=whole)
    assert next((task.description, task.completed) for task in whole.tasks) == ("epochs", 2)


def test_undefined_metrics_are_shown_as_zero_and_kept_as_null(
    tmp_path: Path, said: list[str]
) -> None:
    """One class in the validation split: 0.0 in the tuple, null in the file, one warning."""
    trainer = make_trainer(tmp_path, one_class_data())
    history = trainer.train(3, early_stopping_patience=0)
    loss, accuracy, auc, _ = trainer.validate()
    assert loss > 0
    assert 0 <= accuracy <= 1
    assert auc == 0.0
    assert history["val_auc"] == history["val_selection"] == [None] * 3
    assert json.loads((tmp_path / "history.json").read_text())["val_auc"] == [None] * 3
    assert history["best"]["epoch"] == 1
    warnings = [line for line in said if "WARNING val_auc undefined" in line]
    assert len(warnings) == 1, warnings
    assert "val_auc" in warnings[0]
    assert "lacks a class" in warnings[0]


def test_the_scheduler_steps_without_a_validation_split(tmp_path: Path) -> None:
    """Cosine falls epoch by epoch, as its formula says (story 46)."""
    trainer = make_trainer(
        tmp_path, small_data(validation=0), epochs=4, scheduler={"name": "cosine"}
    )
    history = trainer.train(4)
    half = 0.05 * (1 + np.cos(np.pi * np.arange(4) / 4)) / 2
    assert history["learning_rate"] == pytest.approx(half, rel=1e-5)


def test_plateau_watches_the_selection_metric(tmp_path: Path) -> None:
    """A flat selection metric halves the rate that the optimizer uses (stories 40 and 41)."""
    trainer = make_trainer(
        tmp_path, learning_rate=STILL, scheduler={"name": "reduce_on_plateau", "patience": 1}
    )
    history = trainer.train(6, early_stopping_patience=0)
    expected = [STILL * share for share in (1, 1, 1, 0.5, 0.5, 0.25)]
    assert history["learning_rate"] == expected
    assert trainer.run.optimizer.param_groups[0]["lr"] == expected[-1]


def test_the_log_line_marks_the_selection_metric(tmp_path: Path, said: list[str]) -> None:
    """Each epoch has a line with its numbers; a new best has one of its own."""
    history = make_trainer(tmp_path, selection_metric="val_loss").train(2)
    line = next(line for line in said if "epoch 1/2" in line)
    assert f"val loss {history['val_loss'][0]:.4f} [*] acc" in line
    assert f"INFO new best: epoch 1, val_loss {history['val_loss'][0]:.4f}" in said


def test_a_float32_loss_is_summed_in_float64(tmp_path: Path) -> None:
    """Five hundred batches lose no digits: the mean is that of exactly summed losses."""
    data = small_data(train=4000)
    trainer = make_trainer(tmp_path, data, learning_rate=STILL)
    label, logits = torch.from_numpy(data.label[:4000]), logits_of(trainer, "train")
    exact = math.fsum(
        torch.nn.functional.binary_cross_entropy_with_logits(
            logits.squeeze(1), label.float(), reduction="none"
        ).tolist()
    )
    assert trainer.train_epoch()[0] == pytest.approx(exact / 4000, rel=2e-7)


METRICS = [
    "tpr_at_fpr:0.2",
    "callable_at_precision:0.9",
    "precision_at_recall:0.7",
    "recall_at_precision:0.8",
]


def reference(metric: str, truth: np.ndarray, logit: np.ndarray) -> float:
    """The metric from scikit-learn's curves, or counted."""
    name, target = metric.split(":")[0], float(metric.split(":")[1])
    if name == "tpr_at_fpr":
        alarms, rate, _ = roc_curve(truth, logit)
        return float(np.interp(target, alarms, rate))
    if name == "callable_at_precision":
        right = ((logit > 0) == truth)[np.argsort(-np.abs(logit))]
        shares = np.arange(1, len(right) + 1) / len(right)
        return float(shares[right.cumsum() / len(right) / shares >= target].max(initial=0))
    precision, recall, _ = precision_recall_curve(truth, logit)
    if name == "precision_at_recall":
        return float(precision[:-1][recall[:-1] >= target].max())
    return float(recall[:-1][precision[:-1] >= target].max(initial=0))


@pytest.mark.parametrize("metric", METRICS)
def test_an_operating_point_selects_the_epoch(tmp_path: Path, said: list[str], metric: str) -> None:
    """History, lines, weights and model file follow the metric, which is not the AUROC's choice."""
    data = small_data(validation=41, noise=3.0)
    trainer = make_trainer(tmp_path, data, learning_rate=0.3, seed=3, selection_metric=metric)
    truth = data.label[data.splits["validation"]]
    values: list[float] = []
    after: list[torch.Tensor] = []
    real = trainer.validate

    def validate() -> tuple[float, float, float, float]:
        values.append(reference(metric, truth, logits_of(trainer, "validation")[:, 0].numpy()))
        after.append(weights(trainer).clone())
        return real()

    trainer.validate = validate  # type: ignore[method-assign,assignment]
    history = trainer.train(8, early_stopping_patience=0)
    best = history["best"]["epoch"]
    assert history["val_selection"] == pytest.approx(values, abs=1e-6)
    assert best == int(np.argmax(values)) + 1
    assert 1 < best < 8, "another seed is needed"
    assert best != int(np.argmax(history["val_auc"])) + 1, "another seed is needed"
    saved = load_model_file(tmp_path / "model_best.pt")
    assert torch.equal(torch.cat([v.flatten() for v in saved.weights.values()]), after[best - 1])
    assert saved.best["selection_metric"] == metric
    assert saved.best["val_selection"] == history["val_selection"][best - 1]
    shown = f"{history['val_selection'][best - 1]:.4f}"
    line = next(line for line in said if f"epoch {best}/8" in line)
    auc = f"auc {history['val_auc'][best - 1]:.4f}"
    assert f" {auc} | {metric} {shown} [*]" in line
    assert line.count("[*]") == 1
    assert f"INFO new best: epoch {best}, {metric} {shown}" in said


def test_early_stopping_and_plateau_watch_an_operating_point(tmp_path: Path) -> None:
    """A flat one halves the rate and ends the run, as any other selection metric does."""
    history = make_trainer(
        tmp_path,
        learning_rate=STILL,
        selection_metric="precision_at_recall:0.5",
        scheduler={"name": "reduce_on_plateau", "patience": 1},
    ).train(20, early_stopping_patience=3)
    assert history["stopped"] == "early_stopping"
    assert history["learning_rate"] == [STILL, STILL, STILL, STILL / 2]


def test_an_undefined_operating_point_is_named_and_null(tmp_path: Path, said: list[str]) -> None:
    """One class in the validation split: null, shown as 0, one warning that has its name."""
    trainer = make_trainer(tmp_path, one_class_data(), selection_metric="tpr_at_fpr:0.1")
    history = trainer.train(2, early_stopping_patience=0)
    assert history["val_selection"] == [None, None]
    assert any("| tpr_at_fpr:0.1 0.0000 [*]" in line for line in said)
    warned = [line for line in said if "tpr_at_fpr:0.1 undefined (shown as 0, null" in line]
    assert len(warned) == 1


def test_an_operating_point_of_more_classes_is_refused_before_training(tmp_path: Path) -> None:
    """No step is taken and no file written (as for a loss that does not fit)."""
    with pytest.raises(ConfigError, match=r"selection_metric: tpr_at_fpr:0.1 is for 2 classes"):
        make_trainer(tmp_path, small_data(classes=3), selection_metric="tpr_at_fpr:0.1")
    assert list(tmp_path.iterdir()) == []


def test_another_operating_point_is_another_recipe(tmp_path: Path) -> None:
    """A state that was selected at another point is not continued; another spelling is the same."""
    recipes = [
        make_trainer(tmp_path, selection_metric=f"tpr_at_fpr:{number}").recipe
        for number in ("0.1", "0.10", "0.2")
    ]
    assert recipes[0] == recipes[1] != recipes[2]
