"""The experiment file: what is accepted, and what each mistake is told."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from outlast.config import choices, legal_keys, load, parse, read_yaml
from outlast.errors import ConfigError
from outlast.sections import Config, SplitSection

ROOT = Path(__file__).parents[2]
LEAST = {"data": {"source": "digits"}}


def problems_of(**sections: object) -> list[str]:
    """Parse the smallest experiment plus ``sections`` and return what is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        parse(LEAST | sections)
    return caught.value.problems


def test_only_the_source_is_needed():
    """Every key but data.source has a default."""
    config = parse(LEAST)
    assert config.training.epochs == 50
    assert config.data.split.validation == 0.15
    with pytest.raises(ConfigError, match=r"data: this key has no default; add it"):
        parse({})


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ("training", "learning_rte", "learning_rate"),
        ("training", "epoch", "epochs"),
        ("model", "netwrok", "network"),
        ("checkpoint", "every_second", "every_seconds"),
    ],
)
def test_a_misspelt_key_is_told_the_nearest_legal_one(section, key, near):
    """An unknown key is an error that names key, value and the nearest legal name."""
    assert problems_of(**{section: {key: 1}}) == [
        f"{section}.{key}: unknown key (value 1); did you mean {near}?"
    ]


def test_a_key_like_no_other_is_told_what_is_legal():
    """Without a near name, the message lists the legal keys of that section."""
    assert problems_of(checkpoint={"zzz": 1}) == [
        "checkpoint.zzz: unknown key (value 1); legal here: every_seconds"
    ]


def test_an_unknown_section_and_a_key_two_levels_down_are_refused():
    """Unknown keys are found at the top level and in nested sections."""
    found = problems_of(trainig={}, training={"scheduler": {"nam": "cosine"}})
    assert found == [
        "training.scheduler.nam: unknown key (value 'cosine'); did you mean name?",
        "trainig: unknown key (value {}); did you mean training?",
    ]


def test_every_problem_is_on_one_screen():
    """One message carries all problems, and says how many in which file."""
    with pytest.raises(ConfigError) as caught:
        parse(LEAST | {"training": {"epochs": 0, "batch_size": -1, "x": 1}}, source="my.yaml")
    assert len(caught.value.problems) == 3
    assert str(caught.value).startswith("3 problems in my.yaml:\n  - training.epochs: 0 is not")


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", "+1.0e-3"])
def test_a_number_with_an_exponent_is_a_number(tmp_path, text):
    """YAML 1.1 reads 1e-3 as text; here it is the number, in lists and options too."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "data: {source: digits}\n"
        f"training: {{learning_rate: {text}}}\n"
        f"model: {{options: {{rates: [{text}]}}}}\n"
    )
    config = load(file)
    assert config.training.learning_rate == 0.001
    assert config.model.options == {"rates": [0.001]}


def test_a_bool_is_no_number():
    """`epochs: yes` is an error, not one epoch."""
    found = problems_of(training={"epochs": True, "learning_rate": False})
    assert [line.split(": ", 1)[1] for line in found] == [
        "True is not allowed; a number is needed, not true or false",
        "False is not allowed; a number is needed, not true or false",
    ]
    assert parse({"data": {"source": "digits", "split": {"stratify": False}}})


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, "fast"])
def test_a_learning_rate_is_a_positive_finite_number(value):
    """NaN, infinity, zero, negative numbers and words are refused by key and value."""
    (problem,) = problems_of(training={"learning_rate": value})
    assert problem.startswith(f"training.learning_rate: {value!r} is not allowed; ")


@pytest.mark.parametrize("name", ["cnn3d", "file.py:", "file.py:1st", "two words:Net", ""])
def test_a_network_is_built_in_or_a_path_with_a_class(name):
    """A network that is neither known nor an import path is told the legal forms."""
    (problem,) = problems_of(model={"network": name})
    assert problem.endswith("should be mlp, cnn1d, cnn2d, file.py:Class or module:Class")


@pytest.mark.parametrize("name", ["mlp", "nets/my-net.py:Net", "~/net.py:Net", "timm.models:V"])
def test_a_network_of_the_user_is_accepted(name):
    """Files and installed modules are legal networks."""
    assert parse(LEAST | {"model": {"network": name}}).model.network == name


@pytest.mark.parametrize("name", ["a/b", "../up", ".hidden", "with space", ""])
def test_an_experiment_is_one_folder_name(name):
    """A name that is no plain folder name is refused: it becomes a path under results/."""
    assert problems_of(experiment=name)[0].startswith(f"experiment: {name!r} is not allowed")


def test_splits_must_leave_rows_to_train_on():
    """Shares that add up to one or more are refused, though each is legal."""
    (problem,) = problems_of(data={"source": "x.csv", "split": {"validation": 0.5, "test": 0.5}})
    assert "validation 0.5 + test 0.5 leave nothing to train on" in problem


def test_what_needs_a_validation_split_is_refused_without_one():
    """Plateau and an explicit selection metric are errors when validation is 0."""
    data = {"source": "digits", "split": {"validation": 0}}
    training = {"scheduler": {"name": "reduce_on_plateau"}, "selection_metric": "val_f1"}
    found = problems_of(data=data, training=training)
    assert [line.split(":")[0] for line in found] == [
        "training.scheduler.name",
        "training.selection_metric",
    ]
    assert parse({"data": data, "training": {"scheduler": {"name": "cosine"}}})


def test_a_swept_key_without_values_is_refused():
    """An empty list in the sweep would silently mean no run at all."""
    sweep = {"parameters": {"training.seed": []}, "replicates": {"training.epochs": []}}
    assert [line.split(" has")[0] for line in problems_of(sweep=sweep)] == [
        "sweep: training.seed",
        "sweep: training.epochs",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "a mapping of keys to values is needed"),
        ("", "a mapping of keys to values is needed"),
        ("a: [1\n", "no valid YAML"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_named(tmp_path, text, message):
    """Broken and empty files give one line with the path, no traceback of the parser."""
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(file)
    assert str(file) in str(caught.value)


def test_something_must_be_left_to_evaluate_on():
    """Without validation and test nothing could be said of any run."""
    split = {"validation": 0, "test": 0}
    with pytest.raises(ConfigError, match="nothing is left to evaluate on; give one"):
        parse({"data": {"source": "digits", "split": split}})


def test_a_file_that_is_not_there_is_named(tmp_path):
    """A missing file is our error, with its path."""
    with pytest.raises(ConfigError, match=r"absent\.yaml:\n  - cannot be read: No such file"):
        load(tmp_path / "absent.yaml")


def test_a_config_cannot_be_changed():
    """The values of a run are fixed once they are checked."""
    config = parse(LEAST)
    with pytest.raises(ValidationError):
        config.training.epochs = 3


def test_a_dumped_config_parses_to_itself():
    """What is stored in a model file gives the same config again."""
    config = parse(LEAST | {"training": {"scheduler": {"name": "cosine"}}})
    assert parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "file", ["config.yaml", "examples/breast_cancer.yaml", "examples/diabetes.yaml"]
)
def test_the_shipped_experiments_are_valid(file):
    """The default and every example load."""
    assert load(ROOT / "config" / file).experiment


def test_legal_keys_and_choices():
    """Keys of a section by path, nothing for a path that is none; words of a Literal only."""
    assert legal_keys([]) == list(Config.model_fields)
    assert legal_keys(["data", "split"]) == list(SplitSection.model_fields)
    assert legal_keys(["data", "source"]) == legal_keys(["nowhere"]) == []
    assert "cuda" in choices(type(parse(LEAST).launch).model_fields["device"].annotation)
    assert choices(int) == choices(list[str]) == []


def test_config_sweep_and_recipe_do_not_import_torch():
    """What Snakemake imports while it parses is light."""
    code = (
        "import sys, outlast.config, outlast.sweep, outlast.recipe, outlast.config_reference;"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_key_that_stands_twice_is_refused(tmp_path: Path):
    """YAML keeps the last of two equal keys in silence; a whole section could vanish."""
    path = tmp_path / "e.yaml"
    for text in (
        "data: {source: digits}\ntraining: {epochs: 3}\ntraining: {epochs: 4}\n",
        "data: {source: digits}\ntraining:\n  epochs: 3\n  epochs: 4\n",
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"stands twice in one section \(line [34]\)"):
            load(path)


@pytest.mark.parametrize("key", ["01", "0x1F", "1_000", "yes", "Off", "0b1"])
def test_a_key_that_yaml_would_change_is_refused(tmp_path: Path, key: str):
    """The group 01 would be trained with the rate of the group 1."""
    path = tmp_path / "e.yaml"
    text = "data: {source: digits}\nloss:\n  label_noise:\n    rates: {%s: 0.1}\n"
    path.write_text(text % key)
    with pytest.raises(ConfigError, match=rf"{key}: YAML reads it as \w+ \(line 4\); put it in qu"):
        load(path)
    for quoted in (f"'{key}'", "1", "-3", "a"):
        path.write_text(text % quoted)
        assert list(load(path).loss.label_noise.rates) == [quoted.strip("'")]


@pytest.mark.parametrize(
    ("sections", "advice"),
    [
        ({"training": None}, "training: None is not allowed; a section with keys"),
        ({"loss": "bce"}, "loss: 'bce' is not allowed; a section with keys"),
        ({"experiment": False}, "put it in quotes"),
        ({"experiment": "a/b"}, "letters, digits, . _ - are allowed"),
        ({"data": {"source": "digits", "inputs": "gene_*"}}, "a list of names or patterns"),
    ],
)
def test_advice_is_in_the_words_of_a_user(sections: dict, advice: str):
    """Not in those of the library that checks."""
    (problem,) = problems_of(**sections)
    assert advice in problem


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("val_acc", "val_acc"),
        ("tpr_at_fpr:0", "tpr_at_fpr:0"),
        ("tpr_at_fpr:1e-2", "tpr_at_fpr:0.01"),
        ("tpr_at_fpr:.010", "tpr_at_fpr:0.01"),
        ("callable_at_precision:0.90", "callable_at_precision:0.9"),
        ("precision_at_recall:1.0", "precision_at_recall:1"),
        ("recall_at_precision:0.00001", "recall_at_precision:1e-05"),
    ],
)
def test_a_selection_metric_has_one_spelling(written: str, kept: str):
    """The recipe of a run compares text: two ways to write a number must not be two recipes."""
    config = parse(LEAST | {"training": {"selection_metric": written}})
    assert config.training.selection_metric == kept
    assert parse(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("val_los", "did you mean val_loss?"),
        ("accuracy", "legal here: auto, val_auc, val_f1, val_acc, val_loss, tpr_at_fpr:NUMBER"),
        ("val_f1:0.5", "did you mean val_f1?"),
        ("tpr_at_frp:0.01", "did you mean tpr_at_fpr:0.01?"),
        ("val_TPR_at_FPR: 0.05", "did you mean tpr_at_fpr:0.05?"),
        ("precision_at_recal:90", "did you mean precision_at_recall:0.9?"),
        ("zzz", "precision_at_recall:NUMBER, recall_at_precision:NUMBER"),
        ("", "legal here: auto, val_auc, val_f1, val_acc, val_loss, tpr_at_fpr:NUMBER"),
        ("tpr_at_fpr", "must be at least 0 and below 1, as in tpr_at_fpr:0.01"),
        ("tpr_at_fpr:", "must be at least 0 and below 1, as in tpr_at_fpr:0.01"),
        ("tpr_at_fpr:1", "must be at least 0 and below 1, as in tpr_at_fpr:0.01"),
        ("tpr_at_fpr:-0.1", "must be at least 0 and below 1, as in tpr_at_fpr:0.01"),
        ("tpr_at_fpr:nan", "must be at least 0 and below 1, as in tpr_at_fpr:0.01"),
        ("tpr_at_fpr:0.1:0.2", "must be at least 0 and below 1, as in tpr_at_fpr:0.01"),
        ("callable_at_precision:0", "must be above 0 and at most 1, as in callable_at_precision:0"),
        ("recall_at_precision:0.0", "must be above 0 and at most 1, as in recall_at_precision:0.9"),
        ("precision_at_recall:1.01", "must be above 0 and at most 1, as in precision_at_recall"),
        ("precision_at_recall:9e999", "must be above 0 and at most 1, as in precision_at_recall"),
        ({"tpr_at_fpr": 0.01}, "write it as one word, such as val_f1 or tpr_at_fpr:0.01"),
        (0.9, "write it as one word, such as val_f1 or tpr_at_fpr:0.01"),
    ],
)
def test_a_wrong_selection_metric_is_told_what_to_write(written: object, advice: str):
    """Misspelt or out of range: one line with key, value, and the nearest legal thing."""
    (problem,) = problems_of(training={"selection_metric": written})
    assert problem.startswith(f"training.selection_metric: {written!r} is not allowed; ")
    assert advice in problem
