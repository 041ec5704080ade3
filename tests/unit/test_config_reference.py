"""The generated documents: complete, in step with the code, and agreeing with it."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from outlast.config import parse
from outlast.config_reference import MARK, README, SCHEMA, json_schema, main, reference_table
from outlast.metric_names import EXAMPLES
from outlast.sections import Config, Section

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A folder with the two documents, as they are in the repository."""
    for path in (README, SCHEMA):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    return tmp_path


def keys_of(section=Config, path=""):
    """Return the dotted names of all keys below a section."""
    for name, field in section.model_fields.items():
        yield f"{path}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys_of(field.annotation, f"{path}{name}.")


def test_the_documents_of_the_repository_are_up_to_date():
    """config/README.md and the schema are what `make docs` would write."""
    assert main(["--check", "--root", str(ROOT)]) == 0


def test_every_key_has_a_row_with_default_values_and_meaning():
    """No key is missing from the table, and no cell of a row is empty."""
    rows = {}
    for line in reference_table().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]
            rows[cells[0].strip("`")] = cells
    assert rows.keys() == set(keys_of())
    assert all(len(cells) == 4 and all(cells) for cells in rows.values())
    assert rows["training.learning_rate"][1:3] == ["`0.001`", "number, above 0"]
    assert rows["data.split.test"][1:3] == ["`0.15`", "number, at least 0, below 1"]
    assert rows["data.source"][1] == "required"
    assert rows["launch.device"][2] == "`auto`, `cpu`, `cuda`"
    assert "`val_loss`, `tpr_at_fpr:0.01`, " in rows["training.selection_metric"][2]
    assert rows["data.inputs"][2] == "list or mapping"


def test_a_stale_document_is_found_and_rewritten(checkout, capsys):
    """--check fails and names the file; without it the file is made anew, its head kept."""
    readme = checkout / README
    readme.write_text(f"# By hand\n{MARK}old table\n")
    (checkout / SCHEMA).unlink()
    assert main(["--check", "--root", str(checkout)]) == 1
    assert "run `make docs`" in capsys.readouterr().err
    assert "old table" in readme.read_text()
    assert main(["--root", str(checkout)]) == 0
    assert readme.read_text().startswith(f"# By hand\n{MARK}")
    assert "old table" not in readme.read_text()
    assert main(["--check", "--root", str(checkout)]) == 0


@pytest.mark.parametrize(
    "file", ["config.yaml", "examples/breast_cancer.yaml", "examples/diabetes.yaml"]
)
def test_the_schema_accepts_the_shipped_experiments(file):
    """What an editor checks and what the code checks agree on good files."""
    content = yaml.safe_load((ROOT / "config" / file).read_text())
    jsonschema.Draft202012Validator(json_schema()).validate(content)


@pytest.mark.parametrize(
    "training", [{"epochs": 0}, {"epoch": 3}, {"optimizer": "adamm"}, {"seed": "one"}]
)
def test_the_schema_refuses_what_the_code_refuses(training):
    """Ranges, unknown keys, words and types are in the schema."""
    content = {"data": {"source": "digits"}, "training": training}
    validator = jsonschema.Draft202012Validator(json_schema())
    assert [next(iter(error.path)) for error in validator.iter_errors(content)] == ["training"]


def test_the_schema_says_what_each_key_means():
    """Editors show the description and the default of a key."""
    key = json.loads((ROOT / SCHEMA).read_text())["$defs"]["TrainingSection"]["properties"]
    assert key["epochs"]["default"] == 50
    assert "Passes over the training split" in key["epochs"]["description"]


@pytest.mark.parametrize("metric", [*EXAMPLES, "tpr_at_fpr:1e-05", "recall_at_precision:1"])
def test_the_schema_accepts_a_checked_selection_metric(metric):
    """Snakemake holds the checked values against the schema; what the code writes must pass."""
    training = parse({"data": {"source": "digits"}, "training": {"selection_metric": metric}})
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(training.model_dump(mode="json"))
    for wrong in (f"{metric}x", f"x{metric}", "tpr_at_fpr", "val_f1:0.5"):
        content = {"data": {"source": "digits"}, "training": {"selection_metric": wrong}}
        assert not validator.is_valid(content), wrong
