from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from outlast.config import parse
from outlast.data.batches import Batch, BatchReader
from outlast.data.dataset import DataSet
from outlast.data.roles import read_roles
from outlast.errors import ConfigError
from outlast.objective.build import build_objective
from outlast.objective.losses import noise_corrected_bce, noise_corrected_ce
from outlast.objective.objective import Normalisers, Objective, count_correct, decide


def draw(rows: int, outputs: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 logits with a few large ones, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def data_of(classes: int, rows: int = 12, **roles: Any) -> DataSet:
    """Rows of two values, labels in turn; roles as they would be read."""
    dice = np.random.default_rng(0)
    return DataSet.from_arrays(
        {"x": dice.normal(size=(rows, 2)).astype(np.float32)},
        np.arange(rows) % classes,
        {"train": np.arange(rows - 4), "validation": np.arange(rows - 4, rows)},
        list("abcdef"[:classes]),
        roles=read_roles(roles, rows),
    )


def objective_for(rows: DataSet, **sections: Any) -> Objective:
    """The objective of a config with these sections."""
    return build_objective(parse({"data": {"source": "x.csv"}, **sections}), rows)


def batch_for(data: DataSet, rows: Any) -> Batch:
    """Labels and roles of rows, as the trainer reads them."""
    return BatchReader(data, torch.device("cpu")).read(np.asarray(rows))


def test_auto_takes_the_loss_that_fits() -> None:
    """`auto` is bce with one logit for two classes, cross_entropy with K logits for K classes."""
    two, three = (objective_for(data_of(classes)) for classes in (2, 3))
    assert (two.name, two.num_outputs) == ("bce", 1)
    assert (three.name, three.num_outputs) == ("cross_entropy", 3)


def test_an_explicit_loss_is_kept_or_refused() -> None:
    """cross_entropy for two classes is honoured; bce for three is refused by name (story 51)."""
    two = objective_for(data_of(2), loss={"name": "cross_entropy"})
    assert (two.name, two.num_outputs) == ("cross_entropy", 2)
    for name in ("bce", "focal"):
        with pytest.raises(
            ConfigError, match=rf"loss.name: {name} .* have 3 \(a, b, c\); use cross"
        ):
            objective_for(data_of(3), loss={"name": name})


SITES = np.array(["x", "y", "z"] * 4)
RATES = {"rates": {"x": 0.1, "y": 0.4}}
SINK = {"rates": {"a": 0.1}, "sink": "b"}


@pytest.mark.parametrize(
    ("classes", "loss", "message"),
    [
        (3, {"class_weights": [1, 2]}, r"loss.class_weights: .* has 2 weights, .* 3 classes"),
        (
            2,
            {"name": "noise_corrected_bce", "label_noise": {"rates": {"w": 0.1}}},
            r"loss.label_noise.rates.w: 0.1 is for no group of the data; there are: x, y, z",
        ),
        (
            3,
            {"name": "noise_corrected_ce", "label_noise": {"rates": {"q": 0.1}, "sink": "b"}},
            r"loss.label_noise.rates.q: 0.1 is for no class of the data; there are: a, b, c",
        ),
        (
            3,
            {"name": "noise_corrected_ce", "label_noise": {"rates": {"a": 0.1}, "sink": "q"}},
            r"loss.label_noise.sink: q is no class; there are: a, b, c",
        ),
        (
            3,
            {"name": "noise_corrected_bce", "label_noise": RATES},
            r"loss.name: .* is for 2 classes",
        ),
    ],
)
def test_what_does_not_fit_the_data_is_refused(classes: int, loss: Any, message: str) -> None:
    """Before training, with key, value and what there is."""
    data = data_of(classes, noise_group=SITES)
    with pytest.raises(ConfigError, match=message):
        objective_for(data, loss=loss, data={"source": "x.csv", "noise_group": "site"})


def test_rates_are_those_of_the_rows_groups() -> None:
    """Each group has its own rate; one that is not named has none."""
    data = data_of(2, noise_group=SITES)
    loss = {"name": "noise_corrected_bce", "label_noise": RATES}
    objective = objective_for(data, loss=loss, data={"source": "x.csv", "noise_group": "site"})
    batch, logits = batch_for(data, range(6)), torch.linspace(-2, 2, 6)
    rate = torch.tensor([0.1, 0.4, 0.0] * 2)
    expected = noise_corrected_bce(logits, batch.label, rate)
    assert torch.equal(objective.rows_loss(logits, batch), expected)


def test_the_sink_is_the_class_of_that_name() -> None:
    """Rates go by class name, the others have none."""
    data = data_of(3)
    objective = objective_for(data, loss={"name": "noise_corrected_ce", "label_noise": SINK})
    batch, logits = batch_for(data, range(6)), torch.randn(6, 3)
    expected = noise_corrected_ce(logits, batch.label, torch.tensor([0.1, 0, 0]), 1)
    assert torch.equal(objective.rows_loss(logits, batch), expected)


def test_half_precision_logits_are_summed_in_float32() -> None:
    """The objective computes float16 logits in float32, and a split's mean in float64."""
    data = data_of(3, rows=4000)
    logits, _ = draw(4000, 3, 3)
    objective, batch, half = objective_for(data), batch_for(data, range(4000)), logits.half()
    exact = float(functional.cross_entropy(half.double(), batch.label, reduction="sum"))
    assert objective.main_sum(half, batch).dtype == torch.float32
    assert float(objective.main_sum(half, batch)) == pytest.approx(exact, rel=1e-5)
    assert objective.mean_loss(half, batch) == pytest.approx(exact / 4000, rel=1e-12)


def test_smoothing_and_weights_are_for_training_only() -> None:
    """Story 45: the mean loss of a split knows neither."""
    data, plain = data_of(3), objective_for(data_of(3))
    loss = {"label_smoothing": 0.2, "class_weights": [1, 2, 3]}
    objective, batch = objective_for(data, loss=loss), batch_for(data, range(12))
    logits = torch.randn(12, 3, dtype=torch.float64)
    assert objective.mean_loss(logits, batch) == plain.mean_loss(logits, batch)
    smoothed = functional.cross_entropy(
        logits.float(), batch.label, torch.tensor([1.0, 2, 3]), label_smoothing=0.2
    )
    rows = functional.cross_entropy(
        logits.float(), batch.label, reduction="none", label_smoothing=0.2
    )
    weights = torch.tensor([1.0, 2, 3])[batch.label]
    assert float(objective.main_sum(logits, batch)) == pytest.approx(float((rows * weights).sum()))
    assert float(smoothed) != pytest.approx(plain.mean_loss(logits, batch))


def test_the_normalisers_are_those_of_all_rows_of_the_batch() -> None:
    """Rows, or their class weights; known confounds; valid targets; never 0."""
    data = data_of(
        2,
        confound=np.array(["m", "", "f", "m", "", ""] * 2),
        target=np.array([1.0, np.nan, -2, np.nan, 4, np.nan] * 2),
    )
    rows = np.array([0, 1, 2, 3, 4])
    assert objective_for(data).normalisers(data, rows) == Normalisers(5.0, 5.0, 3.0, 3.0)
    weighted = objective_for(data, loss={"class_weights": [1, 2.5]})
    assert weighted.normalisers(data, rows) == Normalisers(5.0, 8.0, 3.0, 3.0)
    unit = replace(objective_for(data), unit_target=True)
    assert unit.normalisers(data, rows).target == 2.0
    assert objective_for(data).normalisers(data, np.array([1, 5])) == Normalisers(
        2.0, 2.0, 1.0, 1.0
    )


def test_auto_weights_count_training_rows() -> None:
    """Held-out rows do not shape the loss."""
    data = data_of(2, rows=13)
    counts = np.bincount(data.label[:9])
    weights = objective_for(data, loss={"class_weights": "auto"}).weights
    assert weights is not None
    assert weights.tolist() == pytest.approx([1, counts[0] / counts[1]])


def test_a_batch_without_known_confound_or_target_adds_nothing() -> None:
    """Story 42: exactly 0, with a gradient of exactly 0, never NaN."""
    data = data_of(
        2, confound=np.array(["", "m", "f"] + [""] * 9), target=np.array([np.nan] * 11 + [1])
    )
    objective = objective_for(data)
    batch = batch_for(data, [3, 4, 5])
    logits, prediction = torch.randn(3, 2, requires_grad=True), torch.randn(3, requires_grad=True)
    for loss, leaf in (
        (objective.adversary_sum(logits, batch), logits),
        (objective.regression_sum(prediction, batch), prediction),
    ):
        loss.backward()
        assert loss.item() == 0.0
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_targets_are_standardized_by_the_training_rows() -> None:
    """By the valid ones; the error is on that scale."""
    values = np.array([1.0, 3, np.nan, 5, 7, 9, 11, 13, 1000, 1000, 1000, 1000])
    data = data_of(2, target=values)
    objective = objective_for(data, regression={"weight": 1}, data={"source": "x", "target": "t"})
    assert objective.target_mean == pytest.approx(7.0)
    assert objective.target_std == pytest.approx(4.0)
    batch = batch_for(data, [0, 2, 4])
    found = objective.regression_sum(torch.tensor([0.0, 5.0, 1.0]), batch)
    assert float(found) == pytest.approx(1.5**2 + 1.0)
    assert objective.mean_regression(torch.tensor([0.0, 5.0, 1.0]), batch) == pytest.approx(
        3.25 / 2
    )
    assert objective.mean_regression(torch.tensor([1.0]), batch_for(data, [2])) is None


def test_a_unit_target_beyond_one_is_refused() -> None:
    """A sigmoid could never reach it; negative ones are missing."""
    data = data_of(2, target=np.array([0.5, -1, 1.0, 0, 0.2, 1.5, 0, 0, 0, 0, 0, 0]))
    sections = {
        "regression": {"weight": 1, "range": "unit"},
        "data": {"source": "x", "target": "t"},
    }
    with pytest.raises(ConfigError, match=r"regression.range: unit, .* 1.5 in row 5"):
        objective_for(data, **sections)


def test_decisions_are_made_on_raw_logits() -> None:
    """0 decides for class 0; two logits that a half-precision sigmoid would tie are told apart."""
    assert decide(torch.tensor([0.0, 1e-6, -1e-6])).tolist() == [0, 1, 0]
    assert decide(torch.tensor([[0.0], [1e-6]])).tolist() == [0, 1]
    close = torch.tensor([[20.0, 20.0 + 1e-5], [20.0 + 1e-5, 20.0]])
    assert torch.equal(close.half().softmax(1)[:, 0], close.half().softmax(1)[:, 1])
    assert decide(close).tolist() == [1, 0]
    assert int(count_correct(close, torch.tensor([1, 0]))) == 2
    assert int(count_correct(close, torch.tensor([1, 1]))) == 1
