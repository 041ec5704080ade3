import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as reference
from small_run import study_config, study_data

from outlast.config import parse
from outlast.data.store import open_data, prepare
from outlast.errors import DataError
from outlast.evaluate.score import evaluate, measure, measure_regression
from outlast.model.build import build_network
from outlast.model.file import ModelFile, load_model_file
from outlast.sections import DataSection, ModelSection
from outlast.train.interrupt import Interrupt
from outlast.train.run import train_run


def noisy_logits(label: torch.Tensor, num_classes: int, noise: float = 1.2) -> torch.Tensor:
    """Logits that are right more often than not."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.nn.functional.one_hot(label, num_classes).float() * 2
    return logits + noise * torch.randn(logits.shape, generator=generator)


def write_experiment(folder: Path, **section: object) -> tuple[Path, Path]:
    """Prepare data and save an untrained network for them; return model path, data folder."""
    data_folder = folder / "data"
    prepare(DataSection.model_validate({"normalize": "standard", **section}), data_folder)
    data = open_data(data_folder)
    torch.manual_seed(0)
    shapes = {name: list(shape) for name, shape in data.row_shapes.items()}
    num_outputs = 1 if len(data.classes) == 2 else len(data.classes)
    network = build_network(ModelSection(), shapes, num_outputs)
    ModelFile(
        weights=network.state_dict(),
        config={"model": {}},
        classes=data.classes,
        row_shapes=shapes,
        num_outputs=num_outputs,
        normalization=data.normalization.state(),
        data_content=data.content,
        best={"epoch": 4, "val_selection": 0.5, "selection_metric": "val_f1"},
        fingerprint="f00d",
    ).save(folder / "model_best.pt")
    return folder / "model_best.pt", data_folder


def test_other_data_than_the_models_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another split of the same rows has training rows in its test split: said, and written."""
    model, data = write_experiment(tmp_path, source="iris")
    assert evaluate(model, data, tmp_path / "own")["data_of_training"] is True
    assert caplog.messages == []
    section = {"source": "iris", "normalize": "standard", "split": {"seed": 1}}
    prepare(DataSection.model_validate(section), tmp_path / "other")
    assert evaluate(model, tmp_path / "other", tmp_path / "out")["data_of_training"] is False
    assert "another split of the same" in caplog.messages[0]


def test_several_classes_equal_scikit_learn() -> None:
    """Loss, accuracy, macro F1, macro AUROC, confusion and per-class values are the reference's."""
    label = torch.arange(200) % 4
    logits = noisy_logits(label, 4)
    found = measure(logits, label, list("abcd"))
    truth, predicted = label.numpy(), logits.argmax(1).numpy()
    share = logits.double().softmax(1).numpy()
    assert found["loss"] == pytest.approx(reference.log_loss(truth, share), rel=1e-12)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(truth, predicted))
    assert found["f1"] == pytest.approx(reference.f1_score(truth, predicted, average="macro"))
    assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, share, multi_class="ovr"))
    assert found["confusion"] == reference.confusion_matrix(truth, predicted).tolist()
    precision, recall, _, support = reference.precision_recall_fscore_support(truth, predicted)
    rows = found["per_class"]
    assert [row["class"] for row in rows] == list("abcd")
    assert [row["precision"] for row in rows] == pytest.approx(precision)
    assert [row["recall"] for row in rows] == pytest.approx(recall)
    assert [row["support"] for row in rows] == support.tolist()


def test_two_classes_with_one_logit_equal_scikit_learn() -> None:
    """One logit per row is scored as the probability of class 1."""
    label = torch.arange(101) % 2
    logits = noisy_logits(label, 2)
    margin = (logits[:, 1] - logits[:, 0]).reshape(-1, 1)
    found = measure(margin, label, ["no", "yes"])
    truth, share = label.numpy(), margin.double().sigmoid().reshape(-1).numpy()
    assert found["loss"] == pytest.approx(reference.log_loss(truth, share), rel=1e-12)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(truth, share > 0.5))
    assert found["f1"] == pytest.approx(reference.f1_score(truth, share > 0.5))
    assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, share))
    assert found["confusion"] == reference.confusion_matrix(truth, share > 0.5).tolist()


def test_a_split_with_one_class_has_undefined_values_and_no_zeros() -> None:
    """AUROC of one class, recall of an absent class, precision of one never predicted: None."""
    label = torch.zeros(6, dtype=torch.int64)
    logits = torch.tensor([[3.0, 1.0, 0.0]] * 6)
    found = measure(logits, label, list("abc"))
    assert found["auc"] is None
    assert found["accuracy"] == 1.0
    assert found["per_class"][1] == {
        "class": "b",
        "precision": None,
        "recall": None,
        "support": 0,
    }
    json.dumps(found, allow_nan=False)


def test_files_hold_the_test_split(tmp_path: Path) -> None:
    """metrics.json and predictions.parquet describe exactly the test rows, as the network does."""
    model_path, data_folder = write_experiment(tmp_path, source="digits")
    returned = evaluate(model_path, data_folder, tmp_path / "out")
    data = open_data(data_folder)
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert stored == returned
    assert (stored["split"], stored["rows"]) == ("test", len(data.splits["test"]))
    assert (stored["best_epoch"], stored["selection"]) == (4, 0.5)
    assert (stored["selection_metric"], stored["fingerprint"]) == ("val_f1", "f00d")

    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    assert table["row"].tolist() == data.splits["test"].tolist()
    names = np.asarray(data.classes)
    assert table["label"].tolist() == names[data.label[table["row"]]].tolist()
    shares = table[[f"p_{name}" for name in data.classes]].to_numpy()
    assert shares.dtype == np.float64
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert table["predicted"].tolist() == names[shares.argmax(axis=1)].tolist()
    assert (table["label"] == table["predicted"]).mean() == stored["accuracy"]
    assert np.asarray(stored["confusion"]).sum() == stored["rows"]


def test_binary_predictions_have_a_column_for_each_class(tmp_path: Path) -> None:
    """One logit becomes two probabilities; the larger one is that of the predicted class."""
    model_path, data_folder = write_experiment(tmp_path, source="breast_cancer")
    evaluate(model_path, data_folder, tmp_path / "out")
    data = open_data(data_folder)
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    first, second = (table[f"p_{name}"] for name in data.classes)
    assert ((second > first) == (table["predicted"] == data.classes[1])).all()
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert stored["positive_class"] == "benign", "F1 and AUROC are those of this class"


def test_without_a_test_split_the_validation_split_is_scored_and_named(tmp_path: Path) -> None:
    """The key `split` says that the numbers are those of the validation rows."""
    split = {"test": 0, "validation": 0.2}
    model_path, data_folder = write_experiment(tmp_path, source="iris", split=split)
    stored = evaluate(model_path, data_folder, tmp_path / "out")
    assert (stored["split"], stored["rows"]) == ("validation", 30)


def test_without_held_out_rows_there_is_an_error(tmp_path: Path) -> None:
    """Scores on the training rows are never offered as an evaluation."""
    split = {"test": 0, "validation": 0}
    model_path, data_folder = write_experiment(tmp_path, source="iris", split=split)
    with pytest.raises(DataError, match=r"data\.split"):
        evaluate(model_path, data_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_classes_are_refused(tmp_path: Path) -> None:
    """The same number of classes under other names is not the same task."""
    model_path, data_folder = write_experiment(tmp_path, source="iris")
    data = open_data(data_folder)
    renamed = json.loads((data_folder / "manifest.json").read_text())
    renamed["classes"] = ["x", *data.classes[1:]]
    (data_folder / "manifest.json").write_text(json.dumps(renamed))
    with pytest.raises(
        DataError, match=rf"not in the data: {data.classes[0]}; not in the model: x"
    ):
        evaluate(model_path, data_folder, tmp_path / "out")


def test_evaluation_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """Nothing in the metrics depends on time or chance."""
    model_path, data_folder = write_experiment(tmp_path, source="wine")
    for name in ("one", "two"):
        evaluate(model_path, data_folder, tmp_path / name)
    for file in ("metrics.json", "predictions.parquet"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_an_operating_point_that_selected_is_measured_on_the_test_rows() -> None:
    """Under its own name, at the threshold of these rows; absent for other metrics."""
    label = torch.arange(300) % 2
    logits = noisy_logits(label, 2)
    margin = (logits[:, 1] - logits[:, 0]).numpy()
    found = measure(logits, label, ["no", "yes"], "tpr_at_fpr:0.05")
    alarms, rate, _ = reference.roc_curve(label.numpy(), margin)
    assert found["tpr_at_fpr:0.05"] == pytest.approx(np.interp(0.05, alarms, rate))
    plain = measure(logits, label, ["no", "yes"], "val_auc")
    assert found.keys() - plain.keys() == {"tpr_at_fpr:0.05"}


def test_metrics_json_has_the_operating_point_of_the_model(tmp_path: Path) -> None:
    """The model file says what selected its epoch; None is kept where it is undefined."""
    model_path, data_folder = write_experiment(tmp_path, source="breast_cancer")
    model = load_model_file(model_path)
    metric = "recall_at_precision:0.9"
    replace(model, best={**model.best, "selection_metric": metric}).save(model_path)
    evaluate(model_path, data_folder, tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert 0 <= stored[metric] <= 1
    one_class = measure(torch.ones(4, 1), torch.ones(4, dtype=torch.int64), ["a", "b"], metric)
    assert one_class[metric] is None


def test_the_regression_is_measured_where_there_is_a_target() -> None:
    """As scikit-learn over the valid rows, in the unit of the target; None where undefined."""
    dice = np.random.default_rng(0)
    target = dice.normal(100, 20, 50).astype(np.float32)
    predicted = (target + dice.normal(0, 5, 50)).astype(np.float32)
    target[::7] = np.nan
    valid = ~np.isnan(target)
    found = measure_regression(predicted, target, unit=False)
    assert found["rows"] == int(valid.sum())
    truth, guess = target[valid], predicted[valid]
    assert found["mse"] == pytest.approx(reference.mean_squared_error(truth, guess))
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(truth, guess))
    assert found["r2"] == pytest.approx(reference.r2_score(truth, guess))
    target[1] = -1
    assert measure_regression(predicted, target, unit=True)["rows"] == found["rows"] - 1
    nothing = measure_regression(predicted, np.full(50, np.nan), unit=False)
    assert nothing == {"rows": 0, "mse": None, "mae": None, "r2": None}
    assert measure_regression(predicted[:1], target[1:2], unit=False)["r2"] is None


def test_a_study_is_evaluated_with_its_regression(tmp_path: Path) -> None:
    """metrics.json has its errors, the table its predictions, in years; heads load strictly."""
    sections = study_config(epochs=3).model_dump(mode="json")
    data = study_data()
    np.savez(
        tmp_path / "d.npz",
        x=data.inputs["x"],
        label=data.label,
        age=data.roles.values["target"] * 10 + 50,
        sex=data.roles.values["confound"],
        site=data.roles.values["noise_group"],
    )
    sections["data"] |= {"source": str(tmp_path / "d.npz")}
    sections["loss"]["label_noise"] = {"rates": {"1": 0.2}}
    config = parse(sections)
    prepare(config.data, tmp_path / "data")
    assert train_run(config, tmp_path / "data", tmp_path / "run", Interrupt()) == 0
    metrics = evaluate(tmp_path / "run" / "model_best.pt", tmp_path / "data", tmp_path / "test")
    table = pd.read_parquet(tmp_path / "test" / "predictions.parquet")
    known = table["target"].notna()
    assert metrics["regression"]["rows"] == known.sum() > 0
    error = (table["predicted_target"] - table["target"])[known]
    assert metrics["regression"]["mse"] == pytest.approx(float((error**2).mean()), rel=1e-5)
    assert table["predicted_target"].between(-50, 150).all(), "in years"
    study = load_model_file(tmp_path / "run" / "model_best.pt").build_study()
    assert study.adversary is not None
    assert study.regression is not None
    stored = torch.load(tmp_path / "run" / "model_best.pt", weights_only=True)
    for name, value in study.state_dict().items():
        kept = stored["heads"].get(name, stored["weights"].get(name.removeprefix("network.")))
        assert torch.equal(value, kept), name
