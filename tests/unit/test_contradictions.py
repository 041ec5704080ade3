"""What is right key by key and wrong together: each is refused before any job."""

from typing import Any

import pytest

from outlast.config import parse
from outlast.contradictions import RULES
from outlast.errors import ConfigError
from outlast.sweep import expand

CE = {"name": "noise_corrected_ce", "label_noise": {"rates": {"a": 0.1}, "sink": "b"}}
BCE = {"name": "noise_corrected_bce", "label_noise": {"rates": {"a": 0.1}}}
SPLIT = {"validation": 0}

# (sections, start of the one line that they give)
BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"training": {"augment": {"min_scale": 1.2}}},
        "training.augment.min_scale: 1.2 is above max_scale 1.0; swap them",
    ),
    ({"data": {"split": {"validation": 0.6, "test": 0.5}}}, "data.split: validation 0.6 + test"),
    ({"data": {"split": {"validation": 0, "test": 0}}}, "data.split: validation and test are both"),
    ({"data": {"threshold": "median"}}, "data.threshold: median is that of the training split"),
    (
        {"data": {"split": SPLIT}, "training": {"scheduler": {"name": "reduce_on_plateau"}}},
        "training.scheduler.name: reduce_on_plateau watches the validation split",
    ),
    (
        {"data": {"split": SPLIT}, "training": {"selection_metric": "val_f1"}},
        "training.selection_metric: val_f1 needs a validation split",
    ),
    (
        {"loss": {"name": "noise_corrected_bce"}, "data": {"group": "g"}},
        "loss.label_noise.rates: noise_corrected_bce needs them",
    ),
    (
        {"loss": {**BCE, "name": "focal"}},
        "loss.label_noise.rates: loss.name focal does not use them",
    ),
    ({"loss": BCE}, "loss.label_noise.rates: its keys are values of data.noise_group"),
    (
        {"loss": {"name": "noise_corrected_ce", "label_noise": {"rates": {"a": 0.1}}}},
        "loss.label_noise.sink: noise_corrected_ce needs it",
    ),
    (
        {
            "loss": {**BCE, "label_noise": {**BCE["label_noise"], "sink": "z"}},
            "data": {"group": "g"},
        },
        "loss.label_noise.sink: loss.name noise_corrected_bce has none",
    ),
    (
        {"loss": {**CE, "label_noise": {"rates": {"a": 0.1, "b": 0.2}, "sink": "b"}}},
        "loss.label_noise.rates: b is the sink",
    ),
    ({"loss": {"neg_gamma": 1}}, "loss.neg_gamma: loss.name auto does not use it"),
    (
        {"loss": {"class_weights": "auto"}, "training": {"sampling": "balance_labels"}},
        "loss.class_weights: auto, and training.sampling: balance_labels; together they correct",
    ),
    ({"training": {"sampling": "balance_groups"}}, "training.sampling: balance_groups needs"),
    (
        {"training": {"precision": "float16"}, "launch": {"device": "cpu"}},
        "training.precision: float16 needs a GPU",
    ),
    ({"adversary": {"strength": 0.1}}, "adversary.strength: 0.1 needs data.confound"),
    ({"regression": {"weight": 0.5}}, "regression.weight: 0.5 needs data.target"),
]

RIGHT: list[dict[str, Any]] = [
    {"data": {"split": {"validation": 0, "test": 0.5}}},
    {"data": {"threshold": "median", "split": {"stratify": False}}},
    {"data": {"threshold": 3.5}},
    {"loss": BCE, "data": {"noise_group": "g"}},
    {"loss": BCE, "data": {"group": "g"}},
    {"loss": CE},
    {"loss": {**CE, "label_noise": {"rates": {"a": 0.1, "b": 0}, "sink": "b"}}},
    {"loss": {"name": "focal", "neg_gamma": 1}},
    {"loss": {"class_weights": [1, 2]}, "training": {"sampling": "shuffle"}},
    {"training": {"sampling": "balance_labels"}},
    {"training": {"sampling": "balance_groups"}, "data": {"group": "g"}},
    {"training": {"precision": "float16"}},
    {"training": {"precision": "bfloat16"}, "launch": {"device": "cpu"}},
    {"adversary": {"strength": 0.1}, "data": {"confound": "c"}},
    {"regression": {"weight": 0.5}, "data": {"target": "t"}},
]


def with_source(sections: dict[str, Any]) -> dict[str, Any]:
    """The sections, and a source."""
    return {**sections, "data": {"source": "x.csv", **sections.get("data", {})}}


@pytest.mark.parametrize(("sections", "line"), BROKEN)
def test_each_is_one_line(sections: dict[str, Any], line: str) -> None:
    """With key, value and fix, and no other line beside."""
    with pytest.raises(ConfigError) as caught:
        parse(with_source(sections))
    (problem,) = caught.value.problems
    assert problem.startswith(line)
    assert "{" not in problem


def test_every_rule_is_tested() -> None:
    """A rule without a case could never fail."""
    assert len(BROKEN) == len(RULES)


@pytest.mark.parametrize("sections", RIGHT)
def test_what_belongs_together_is_accepted(sections: dict[str, Any]) -> None:
    """No rule refuses more than it should."""
    parse(with_source(sections))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"loss": {"class_weights": "balanced"}},
            ["loss.class_weights: 'balanced'", "auto", "list"],
        ),
        ({"loss": {"class_weights": [1, -1]}}, ["loss.class_weights", "-1"]),
        (
            {"loss": {"label_noise": {"rates": {"a": 1}}}},
            ["loss.label_noise.rates.a: 1", "less than 1"],
        ),
        ({"loss": {"label_smoothing": 1}}, ["loss.label_smoothing: 1", "less than 1"]),
        ({"data": {"threshold": "mean"}}, ["data.threshold: 'mean'", "median", "number"]),
        ({"loss": {"neg_gamma": True}}, ["loss.neg_gamma: True", "a number is needed"]),
        ({"data": {"threshold": True}}, ["data.threshold: True", "a number"]),
        ({"adversary": {"lambda": 1}}, ["adversary.lambda: unknown key"]),
    ],
)
def test_values_of_several_kinds_have_one_message(
    sections: dict[str, Any], words: list[str]
) -> None:
    """A word or a number, a word or a list: one line says what is legal."""
    with pytest.raises(ConfigError) as caught:
        parse(with_source(sections))
    (problem,) = caught.value.problems
    for word in words:
        assert word in problem


def test_a_sweep_is_judged_run_by_run() -> None:
    """A swept value may be what makes the others legal, or what does not go with them."""
    loss = {"neg_gamma": 1}
    base = with_source({"loss": loss, "sweep": {"parameters": {"loss.name": ["focal"]}}})
    (run,) = expand(base)
    assert run.config.loss.neg_gamma == 1
    base["sweep"] = {"parameters": {"loss.name": ["focal", "bce"]}}
    with pytest.raises(ConfigError, match=r"loss.neg_gamma: loss.name bce does not use it"):
        expand(base)
