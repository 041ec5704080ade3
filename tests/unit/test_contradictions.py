"""What is right key by key and wrong together: each is refused before any job."""

from typing import Any

import pytest

from outlast.config import parse
from outlast.contradictions import RULES, UNUSED
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
    ({"loss": {"gamma": 3}}, "loss.gamma: 3.0, and loss.name auto does not use it; remove it, or"),
    (
        {"loss": {"class_weights": "auto"}, "training": {"sampling": "balance_labels"}},
        "loss.class_weights: auto, and training.sampling: balance_labels; together they correct",
    ),
    ({"training": {"sampling": "balance_groups"}}, "training.sampling: balance_groups needs"),
    (
        {"training": {"precision": "float16"}, "launch": {"device": "cpu"}},
        "training.precision: float16 needs a GPU",
    ),
    (
        {"launch": {"device": "cpu"}, "resources": {"gpus": 1}},
        "resources.gpus: 1, and launch.device: cpu would leave them idle",
    ),
    (
        {"launch": {"processes": 4}, "resources": {"gpus": 2}},
        "resources.gpus: 2, and launch.processes: 4; each rank has one GPU of its own",
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
        expand(with_source(sections))
    (problem,) = caught.value.problems
    assert problem.startswith(line)
    assert "{" not in problem


def test_every_rule_is_tested() -> None:
    """A rule without a case could never fail."""
    assert len(BROKEN) == len(RULES) + len(UNUSED)


@pytest.mark.parametrize("sections", RIGHT)
def test_what_belongs_together_is_accepted(sections: dict[str, Any]) -> None:
    """No rule refuses more than it should."""
    expand(with_source(sections))


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
        ({"loss": {"label_noise": {"rates": {True: 0.1}}}}, ["rates: {True: 0.1}", "quotes"]),
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
    base = with_source({"data": {"confound": "c"}})
    base["sweep"] = {"parameters": {"training.sampling": ["shuffle", "balance_labels"]}}
    assert len(expand(base)) == 2
    base["loss"] = {"class_weights": "auto"}
    with pytest.raises(ConfigError, match=r"loss.class_weights: auto, .* \(in sweep\)"):
        expand(base)


@pytest.mark.parametrize(
    ("loss", "using", "others"),
    [
        ({"gamma": 1, "neg_gamma": 2}, "focal", ["bce", "auto"]),
        ({"label_noise": {"rates": {"a": 0.1}}}, "noise_corrected_bce", ["bce", "focal"]),
        (
            {"label_noise": {"rates": {"a": 0.1}, "sink": "b"}},
            "noise_corrected_ce",
            ["cross_entropy", "auto"],
        ),
    ],
)
def test_one_run_of_a_sweep_may_use_what_the_others_do_not(
    loss: dict[str, Any], using: str, others: list[str]
) -> None:
    """To compare losses in one experiment; what no run uses is refused once."""
    base = with_source({"loss": loss, "data": {"group": "g"}})
    base["sweep"] = {"parameters": {"loss.name": [*others, using]}}
    runs = expand(base)
    assert [run.config.loss.name for run in runs] == [*others, using]
    parse(runs[0].config.model_dump(mode="json", exclude_defaults=True))  # as a job does
    base["sweep"] = {"parameters": {"loss.name": others}}
    with pytest.raises(ConfigError) as caught:
        expand(base)
    unused = loss.get("label_noise", loss)
    assert len(caught.value.problems) == len(unused)


def test_contradictions_stand_beside_wrong_values() -> None:
    """One screen has both; what a wrong value would have to do with is not judged."""
    sections = {
        "adversary": {"strength": 1},
        "training": {"epochs": -1, "augment": {"min_scale": 3}},
        "loss": {"class_weights": [1, -1]},
        "colour": "red",
    }
    with pytest.raises(ConfigError) as caught:
        parse(with_source(sections))
    starts = [problem.split(":")[0] for problem in caught.value.problems]
    assert sorted(starts) == [
        "adversary.strength",
        "colour",
        "loss.class_weights.1",
        "training.augment.min_scale",
        "training.epochs",
    ]
    with pytest.raises(ConfigError) as caught:
        parse(with_source({"adversary": {"strength": 1}, "data": {"confound": 5}}))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["data.confound"]
