"""`outlast check`: each problem with its key and fix, several at once, and what a good one says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlast import cli
from outlast.check import findings
from outlast.check.overview import WIDTH

NETWORKS = """\
import torch

class Plain(torch.nn.Module):
    def __init__(self, num_inputs, outputs=1, norm=False):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(num_inputs) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(num_inputs, outputs)
    def forward(self, rows):
        return self.last(self.norm(rows))

class Fixed(torch.nn.Module):
    def forward(self, rows):
        return rows[:, :1]
"""


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two tables of 60 rows, of two and three classes, and networks."""
    dice = np.random.default_rng(0)
    rows = ["gene_a,gene_b,kind,cell,donor,batch,age"]
    for row in range(60):
        a, b = dice.normal(size=2).round(3)
        batch = "" if row % 10 == 0 else f"b{row % 4 // 2}"
        age = "" if row % 6 == 0 else row % 5
        rows.append(f"{a},{b},k{row % 2},c{row % 3},d{row % 12},{batch},{age}")
    (tmp_path / "cells.csv").write_text("\n".join(rows))
    (tmp_path / "networks.py").write_text(NETWORKS)
    # a target in one row alone, which the split of seed 0 holds out
    hidden = [
        f"{row.rpartition(',')[0]},{7 if number == 0 else ''}"
        for number, row in enumerate(rows[1:])
    ]
    (tmp_path / "hidden.csv").write_text("\n".join([rows[0], *hidden]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


DATA = {
    "source": "cells.csv",
    "inputs": ["gene_*"],
    "label": "kind",
    "noise_group": "donor",
    "confound": "batch",
    "target": "age",
}


def text(data: dict[str, Any] | None = None, **sections: Any) -> str:
    """An experiment on the table, as JSON."""
    keys = DATA | (data or {})
    return json.dumps({"experiment": "cells", "data": keys, **sections})


def problems(config: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Check a config that is not good; return the lines of its problems."""
    assert cli.main(["check", config]) == 1
    output, error = capsys.readouterr()
    assert output == ""
    head, *lines = error.rstrip("\n").split("\n  - ")
    assert re.fullmatch(rf"error: {len(lines)} problems? in --config:", head), error
    return lines


THREE = {"label": "cell"}
NOISY = {"name": "noise_corrected_bce"}
PLAIN = "networks.py:Plain"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # what the config alone tells
    "metric out of range": (
        {"training": {"selection_metric": "tpr_at_fpr:1"}},
        "training.selection_metric: 'tpr_at_fpr:1' is not allowed; the number after the colon",
    ),
    "plateau without validation": (
        {
            "data": {"split": {"validation": 0}},
            "training": {"scheduler": {"name": "reduce_on_plateau"}},
        },
        "training.scheduler.name: reduce_on_plateau watches the validation split",
    ),
    "weights and balance": (
        {"loss": {"class_weights": "auto"}, "training": {"sampling": "balance_labels"}},
        "loss.class_weights: auto, and training.sampling: balance_labels; together",
    ),
    "adversary without confound": (
        {"data": {"confound": None}, "adversary": {"strength": 1}},
        "adversary.strength: 1.0 needs data.confound",
    ),
    "float16 on a CPU": (
        {"training": {"precision": "float16"}, "launch": {"device": "cpu"}},
        "training.precision: float16 needs a GPU, and launch.device is cpu; use bfloat16",
    ),
    # what the data tell
    "no such source": ({"data": {"source": "cell.csv"}}, "data.source: .* did you mean cells.csv"),
    "unknown column": (
        {"data": {"label": "knid"}},
        "data.label: 'knid' is not in the source; did you mean kind",
    ),
    "text among the inputs": (
        {"data": {"inputs": ["gene_*", "cell"]}},
        "data.inputs: column 'cell' is not numeric",
    ),
    "loss for two classes": (
        {"data": THREE, "loss": {"name": "bce"}},
        r"loss.name: bce is for 2 classes, and the data have 3 \(c0, c1, c2\); use cross_entropy",
    ),
    "rates of unknown groups": (
        {"loss": {**NOISY, "label_noise": {"rates": {"d99": 0.1}}}},
        "loss.label_noise.rates.d99: 0.1 is for no group of the data; there are: d0, d1",
    ),
    "rates of unknown classes": (
        {
            "data": THREE,
            "loss": {
                "name": "noise_corrected_ce",
                "label_noise": {"rates": {"c0": 0.1, "c9": 0.2}, "sink": "c2"},
            },
        },
        "loss.label_noise.rates.c9: 0.2 is for no class of the data; there are: c0, c1, c2",
    ),
    "no target in any training row": (
        {
            "data": {"source": "hidden.csv"},
            "regression": {"weight": 1},
        },
        "data.target: missing in every training row; set regression.weight to 0",
    ),
    "a role that is the label": (
        {"data": {"confound": "kind"}},
        "data.confound: 'kind' is the label, and cannot be the confound as well",
    ),
    "weights of other classes": (
        {"loss": {"class_weights": [1, 2, 3]}},
        r"loss.class_weights: \[1.0, 2.0, 3.0\] has 3 weights, and the data have 2 classes",
    ),
    "metric for two classes": (
        {"data": THREE, "training": {"selection_metric": "tpr_at_fpr:0.1"}},
        "training.selection_metric: tpr_at_fpr:0.1 is for 2 classes, and the data have 3; use",
    ),
    "target beyond its range": (
        {"regression": {"weight": 1, "range": "unit"}},
        "regression.range: unit, and the target is 2 in row 2",
    ),
    # what the network tells
    "no such network": (
        {"model": {"network": "networks.py:Plane"}},
        "model.network: networks.py has no class or function Plane",
    ),
    "unknown option": (
        {"model": {"options": {"widht": 3}}},
        "model.network: mlp cannot be built with .*'widht'.* correct model.options",
    ),
    "wrong number of logits": (
        {"model": {"network": PLAIN, "options": {"outputs": 4}}},
        r"model.network: \S+Plain gives \(2, 4\) for a batch of 2, and this loss needs \(2, 1\)",
    ),
    "nothing to train": (
        {"model": {"network": "networks.py:Fixed"}},
        "model.network: networks.py:Fixed has no parameter to train; ",
    ),
    "no layer for the heads": (
        {"model": {"network": PLAIN}, "adversary": {"strength": 1}},
        "model.head: the network has no module head or .* modules are norm, last: name the last",
    ),
    "one row in a batch": (
        {
            "model": {"network": PLAIN, "options": {"norm": True}},
            "training": {"batch_size": 41},
        },
        "model: batch normalization cannot train on one row",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_problem_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With key, value and fix, on the error output, with exit code 1; all runs: none is named."""
    sections, said = REFUSED[name]
    (line,) = problems(text(**sections), capsys)
    assert re.match(said, line), line
    assert "(run" not in line


def test_problems_of_data_loss_and_network_are_told_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refused loss does not hide what is wrong with the metric and the network."""
    config = text(
        THREE,
        loss={"name": "bce", "class_weights": [1, 2]},
        model={"options": {"widht": 3}},
        training={"selection_metric": "tpr_at_fpr:0.1"},
    )
    keys = [line.partition(":")[0] for line in problems(config, capsys)]
    assert keys == [
        "training.selection_metric",
        "loss.name",
        "loss.class_weights",
        "model.network",
    ]


def test_a_refused_weight_leaves_the_logits_of_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """A network with two logits for cross_entropy is right, whatever the weights are."""
    config = text(
        loss={"name": "cross_entropy", "class_weights": [1]},
        model={"network": PLAIN, "options": {"outputs": 2}},
    )
    (line,) = problems(config, capsys)
    assert line.startswith("loss.class_weights: ")


def test_every_name_that_the_source_lacks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Not only the first, as reading would."""
    names = {"inputs": ["gene_*", "RNA_*"], "label": "knid", "confound": "bacth", "target": "aeg"}
    lines = problems(text(names), capsys)
    assert [line.partition("; ")[0] for line in lines] == [
        "data.label: 'knid' is not in the source",
        "data.confound: 'bacth' is not in the source",
        "data.target: 'aeg' is not in the source",
        "data.inputs: 'RNA_*' is not in the source",
    ]


def test_a_problem_names_its_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """One wrong value of a sweep: up to three runs are named, the rest counted."""
    sweep = {"parameters": {"loss.name": ["bce", "cross_entropy"], "training.seed": [1, 2]}}
    (line,) = problems(text(THREE, sweep=sweep), capsys)
    assert line.endswith("or auto (runs name=bce__seed=1; name=bce__seed=2)")
    sweep["parameters"]["training.seed"] = [1, 2, 3, 4, 5]
    (line,) = problems(text(THREE, sweep=sweep), capsys)
    assert line.endswith("(runs name=bce__seed=1; name=bce__seed=2; name=bce__seed=3 and 2 more)")
    sweep = {"parameters": {"model.options": [{"hidden": [4]}, {"hiden": [4]}]}}
    (line,) = problems(text(sweep=sweep), capsys)
    assert line.endswith("(run options=hiden-4)")


def test_config_and_sweep_are_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """As in every verb: the wrong key of the base, and the swept one that cannot be."""
    config = text(training={"epoch": 3}, sweep={"parameters": {"data.source": ["iris"]}})
    first, second = problems(config, capsys)
    assert first.startswith("training.epoch: unknown key")
    assert second.startswith("sweep: data.source cannot be swept")


def test_a_good_experiment_is_shown(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resolved: splits, classes, roles, loss, metric, weights, ranks, swept values and runs."""
    config = text(
        adversary={"strength": 1},
        launch={"processes": 2},
        sweep={
            "parameters": {"model.options": [{"hidden": [4]}, {"hidden": [8]}]},
            "replicates": {"training.seed": [0, 1]},
        },
    )
    (study / "cells.yaml").write_text(config)
    assert cli.main(["check", "cells.yaml"]) == 0
    output, error = capsys.readouterr()
    assert error == ""
    squeezed = [re.sub(" +", " ", line).strip() for line in output.splitlines()]
    adversaries = [features * 64 + 64 + 64 * 2 + 2 for features in (4, 8)]
    networks = [2 * width + width + width + 1 for width in (4, 8)]
    small, large = (sum(both) for both in zip(adversaries, networks, strict=True))
    assert squeezed == [
        "experiment cells (cells.yaml)",
        "data cells.csv: 60 rows",
        "inputs features (2 values)",
        "noise_group donor: 12 groups",
        "confound batch: 2 values, known in 54 of 60 rows",
        "target age: valid in 50 rows",
        "classes 2 train validation test",
        "k0 21 4 5",
        "k1 21 5 4",
        f"network mlp: {small} to {large} parameters, with an adversary",
        "loss bce (auto)",
        "selection val_auc (auto)",
        "ranks 2 per run, device auto",
        "sweep model.options: {'hidden': [4]}, {'hidden': [8]}",
        "sweep training.seed: 0, 1",
        "runs options=hidden-4__seed=0",
        "options=hidden-4__seed=1",
        "options=hidden-8__seed=0",
        "options=hidden-8__seed=1",
        "note data.target is set and no run uses it: regression.weight is 0",
        "note data.noise_group is set and no run uses it: loss.name is not",
        "noise_corrected_bce, training.sampling not balance_groups",
        "",
        "4 runs, all checks passed",
    ]


def test_without_validation_the_last_epoch_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """One run without a sweep; unit targets that are negative count as missing."""
    config = text(
        {"split": {"validation": 0}, "target": "gene_a", "inputs": ["gene_b"]},
        regression={"range": "unit"},
        training={"precision": "float16"},
    )
    assert cli.main(["check", config]) == 0
    output = capsys.readouterr().out
    assert "selection    the last epoch: there is no validation split\n" in output
    assert ("\nnote         training.precision: float16" in output) != torch.cuda.is_available()
    assert "\nnote         regression.range is set and has no effect" in output
    assert output.endswith("\n\n1 run, all checks passed\n")
    valid = re.search(r"target +gene_a: valid in (\d+) rows", output)
    assert valid is not None
    assert 0 < int(valid[1]) < 60


def test_arrays_are_read_where_they_lie(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a warning of read-only memory; shapes and groups are shown."""
    (study / "arrays").mkdir()
    arrays = {"image": (1, 4, 4), "signal": (7,), "age": (1,)}
    for name, shape in arrays.items():
        np.save(study / "arrays" / f"{name}.npy", np.zeros((40, *shape), dtype=np.float32))
    for name, values in {"kind": 2, "donor": 8}.items():
        np.save(study / "arrays" / f"{name}.npy", np.arange(40) % values)
    data = {"source": "arrays", "inputs": list(arrays), "label": "kind", "group": "donor"}
    assert cli.main(["check", json.dumps({"data": data})]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "inputs       image (1 x 4 x 4), signal (7 values), age (1 value)"
    assert lines[3] == "group        donor: 8 groups"
    assert lines[4].startswith("classes      2 ")


def test_a_thousand_runs_fit_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each distinct network is built once; the first runs are shown and the others counted."""
    built: list[str] = []
    build = findings.build_study

    def count(config: Any, *others: Any) -> Any:
        built.append(config.model.model_dump_json())
        return build(config, *others)

    monkeypatch.setattr(findings, "build_study", count)
    long = ["a" * 40, "b" * 40]
    sweep = {
        "parameters": {"model.options": [{"hidden": [4]}, {"hidden": [8]}]},
        "replicates": {"training.seed": list(range(500)), "regression.weight": [0.0, 0.5]},
    }
    names = {"source": "/".join([".", *long, "..", "..", "cells.csv"])}
    Path(*long).mkdir(parents=True)
    assert cli.main(["check", text(names, sweep=sweep)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(built) == 4  # with and without a head
    assert "sweep        training.seed: 0, 1, 2, 3, 4 and 495 more" in lines
    assert "             ... and 1,980 more" in lines
    assert lines[-1] == "2,000 runs, all checks passed"
    assert len(lines) < 50
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("loss", ["auto", "cross_entropy"])
def test_nothing_is_written(study: Path, monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    """Neither for a good experiment nor for one with a problem."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own, of networks.py
    before = sorted(study.rglob("*"))
    config = text(model={"network": PLAIN}, loss={"name": loss})
    assert cli.main(["check", config]) == (loss != "auto")
    assert sorted(study.rglob("*")) == before


def test_a_wrong_key_is_told_without_torch(study: Path) -> None:
    """At once: neither torch nor scikit-learn is imported before the config is good."""
    for library in ("torch", "sklearn"):
        (study / "fake" / library).mkdir(parents=True)
        said = f"raise SystemExit('{library} was imported')\n"
        (study / "fake" / library / "__init__.py").write_text(said)
    path = os.pathsep.join([str(study / "fake"), *filter(None, [os.environ.get("PYTHONPATH")])])

    def check(config: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "outlast", "check", config]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    wrong = check(text(training={"epoch": 3}))
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: 1 problem in --config:\n  - training.epoch: unknown")
    assert "torch was imported" in check(text()).stderr
