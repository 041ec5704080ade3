import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from outlast.config import read_yaml
from outlast.data.store import open_data, prepare
from outlast.model.file import load_model_file
from outlast.sweep import expand
from outlast.train.interrupt import Interrupt
from outlast.train.run import train_run

ROOT = Path(__file__).parents[2]


def load_script():
    """Return docs/studies/removing_a_confound.py as a module."""
    path = ROOT / "docs/studies/removing_a_confound.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


study = load_script()


@pytest.fixture(scope="module")
def experiment(tmp_path_factory) -> Path:
    """The example with 2 epochs, strengths 0 and 3, two seeds."""
    folder = tmp_path_factory.mktemp("experiment")
    content = read_yaml(ROOT / "config/examples/diabetes.yaml")
    content["training"]["epochs"] = 2
    content["launch"] = {"device": "cpu"}
    content["sweep"] = {
        "parameters": {"adversary.strength": [0, 3]},
        "replicates": {"training.seed": [0, 1]},
    }
    runs = expand(content)
    prepare(runs[0].config.data, folder / "data")
    for run in runs:
        code = train_run(run.config, folder / "data", folder / "runs" / run.name, Interrupt())
        assert code == 0
    listed = [{"name": r.name, "setting": r.setting, "values": r.values} for r in runs]
    (folder / "runs.json").write_text(json.dumps(listed))
    return folder


def find(kind: str, representation: np.ndarray, confound: np.ndarray) -> float:
    """Return the AUROC on the second half of a probe that has learned from the first."""
    half = len(confound) // 2
    scores = study.probe(kind, representation[:half], confound[:half], representation[half:])
    return float(study.auroc(confound[half:], scores))


@pytest.mark.parametrize("kind", list(study.PROBES))
def test_a_probe_finds_what_is_there_and_nothing_else(kind):
    """A confound that is one of the values: AUROC 1, in whatever unit; noise: near 0.5."""
    generator = np.random.default_rng(0)
    confound = generator.integers(0, 2, 1000)
    noise = generator.normal(size=(1000, 3))
    assert abs(find(kind, noise, confound) - 0.5) < 0.06
    assert find(kind, np.c_[noise, 1e-3 * confound], confound) > 0.99


def test_the_forest_finds_what_a_linear_probe_is_blind_to():
    """The confound is the sign of a product: a linear probe alone would flatter."""
    representation = np.random.default_rng(0).normal(size=(1000, 2))
    confound = (representation.prod(axis=1) > 0).astype(int)
    assert abs(find("linear probe", representation, confound) - 0.5) < 0.1
    assert find("forest probe", representation, confound) > 0.95


def test_auroc_is_that_of_scikit_learn():
    """For several lines at once, with ties."""
    generator = np.random.default_rng(0)
    truth, scores = generator.integers(0, 2, 50), generator.integers(0, 6, (4, 50))
    expected = [roc_auc_score(truth, line) for line in scores]
    assert study.auroc(truth, scores) == pytest.approx(expected)


def test_the_interval_is_that_of_student():
    """Three values: 4.303 standard errors to each side; one value has no interval."""
    assert study.interval(np.array([1.0, 2.0, 3.0])) == pytest.approx(
        (2, -0.4841, 4.4841), abs=1e-3
    )
    assert np.isnan(study.interval(np.array([1.0]))[1])


def test_resampled_rows_are_the_same_for_both_settings():
    """Equal scores differ by nothing on any rows; scores of the truth beat scores of chance."""
    generator = np.random.default_rng(0)
    truth, chance = generator.integers(0, 2, 100), generator.normal(size=(3, 100))
    assert study.resampled_difference(truth, chance, chance, 50) == (0, 0)
    low, high = study.resampled_difference(truth, chance, np.tile(truth, (3, 1)), 200)
    assert 0.3 < low < high < 0.7


def test_the_representation_is_the_input_of_the_last_layer(experiment: Path):
    """Four values a row, from which the head makes the logits; targets in their own unit."""
    data = open_data(experiment / "data")
    model_file = load_model_file(experiment / "runs/strength=3.0__seed=0/model_best.pt")
    found = study.represent(model_file, data, np.arange(50))
    assert found.values.shape == (50, 4)
    with torch.inference_mode():
        logits = model_file.build().head(torch.from_numpy(found.values))[:, 0].numpy()
    np.testing.assert_allclose(found.logits, logits, rtol=1e-5)
    assert 25 < found.target.mean() < 346, "progression is a score between these"


def test_the_study_writes_a_table_and_a_figure(experiment: Path, tmp_path: Path, monkeypatch):
    """Four measures of two strengths; the difference of the pairs is that of the means."""
    monkeypatch.setattr(sys, "argv", ["study", str(experiment), "--out", str(tmp_path)])
    study.main()
    table = pd.read_csv(tmp_path / "removing_a_confound.tsv", sep="\t")
    assert len(table) == 8
    assert set(table["seeds"]) == {2}
    means = table.pivot(index="measure", columns="strength", values="mean")
    difference = table[table["strength"] == 3].set_index("measure")["difference"]
    np.testing.assert_allclose(difference, (means[3] - means[0])[difference.index], atol=2e-4)
    with Image.open(tmp_path / "removing_a_confound.png") as image:
        assert image.size == (1200, 585)


def test_models_of_other_data_are_refused(experiment: Path, tmp_path: Path):
    """Rows that a model was trained on could be among those that are scored."""
    folder = shutil.copytree(experiment, tmp_path / "experiment")
    section = expand(read_yaml(ROOT / "config/examples/diabetes.yaml"))[0].config.data
    split = section.split.model_copy(update={"seed": 1})
    prepare(section.model_copy(update={"split": split}), folder / "data")
    with pytest.raises(SystemExit, match="trained on other data"):
        study.read_runs(folder, open_data(folder / "data"), "test")
