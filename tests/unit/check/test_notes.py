"""What `outlast check` finds worth a look though it is allowed."""

import json
from typing import Any

import pytest

from outlast import cli
from outlast.check.overview import INDENT


@pytest.fixture
def notes(tmp_path, monkeypatch, capsys):
    """A function that checks an experiment on 48 rows of 12 donors, and returns its notes."""
    rows = [f"{row},{row % 2},d{row // 4},k{row // 24}" for row in range(48)]
    (tmp_path / "cells.csv").write_text("\n".join(["gene,flag,donor,kind", *rows]))
    monkeypatch.chdir(tmp_path)

    def check(data: dict[str, Any] | None = None, **sections: Any) -> list[str]:
        keys = {"source": "cells.csv", "inputs": ["gene"], "label": "kind", **(data or {})}
        assert cli.main(["check", json.dumps({"data": keys, **sections})]) == 0
        found: list[str] = []
        is_note = False
        for line in capsys.readouterr().out.splitlines():
            word, text = line[:INDENT].strip(), line[INDENT:]
            is_note = word == "note" or (is_note and not word)
            if word == "note":
                found.append(text)
            elif is_note and text:
                found[-1] += f" {text}"
        return found

    return check


def test_an_experiment_as_one_thinks_has_none(notes):
    """Neither by default nor where every key that is set has an effect."""
    assert notes() == []
    assert notes({"confound": "flag"}, adversary={"strength": 1, "anneal_epochs": 3}) == []


def test_keys_without_effect(notes):
    """Each that is set, unless one run of the sweep uses it."""
    without = "is set and has no effect: what it belongs to is off, or another kind"
    sections = {"adversary": {"anneal_epochs": 3}, "training": {"momentum": 0.5, "epochs": 3}}
    assert notes(**sections) == [
        f"adversary.anneal_epochs {without}",
        f"training.momentum {without}",
    ]
    sweep = {"parameters": {"adversary.strength": [0, 1], "training.optimizer": ["sgd", "adam"]}}
    assert notes({"confound": "flag"}, **sections, sweep=sweep) == []


def test_roles_that_no_run_uses(notes):
    """Whoever names a confound and forgets the strength has no adversary."""
    roles = {"confound": "flag", "target": "gene", "noise_group": "donor"}
    found = notes({**roles, "inputs": ["flag"]})
    assert [line.split(" is set and no run uses it: ")[0] for line in found] == [
        "data.confound",
        "data.target",
        "data.noise_group",
    ]
    sweep = {"parameters": {"adversary.strength": [0, 1], "regression.weight": [0, 1]}}
    data = {"confound": "flag", "target": "gene", "inputs": ["flag"]}
    assert notes(data, sweep=sweep) == []


def test_a_confound_that_is_the_group(notes):
    """What the adversary has learned cannot be seen on rows of other donors."""
    found = notes({"group": "donor", "confound": "donor"})
    said = "data.confound: donor is data.group too: held-out rows have other values"
    assert said in found
    assert said not in notes({"group": "donor", "confound": "flag"}, adversary={"strength": 1})


def test_groups_without_a_rate(notes):
    """Their labels count as right, which may be a misspelt name."""
    rates = {f"d{donor}": 0.1 for donor in range(12) if donor not in (3, 5)}
    noisy = {"name": "noise_corrected_bce", "label_noise": {"rates": rates}}
    found = notes({"noise_group": "donor"}, loss=noisy)
    assert found == ["loss.label_noise.rates: none for d3, d5, whose labels count as right"]
    rates |= {"d3": 0, "d5": 0}
    assert notes({"noise_group": "donor"}, loss=noisy) == []


def test_splits_that_groups_make_uneven(notes, tmp_path, capsys):
    """A share that whole groups cannot give, a class that a split lacks; prepare says it too."""
    rows = [f"{row},d{row // 30},k{row % 2 if row < 30 else row // 30 % 2}" for row in range(120)]
    (tmp_path / "cells.csv").write_text("\n".join(["gene,donor,kind", *rows]))
    found = notes({"group": "donor", "split": {"validation": 0.05, "test": 0.1}})
    size = "of the rows was asked for, and with whole groups it has 0.25; try another"
    assert found[0].startswith(f"data.split.validation: 0.05 {size}")
    assert any(line.startswith(f"data.split.test: 0.1 {size}") for line in found)
    lacking = [line for line in found if "it has no row of class k" in line]
    assert len(found) == 2 + len(lacking) == 3  # only the first donor has both
    config = {
        "source": "cells.csv",
        "inputs": ["gene"],
        "label": "kind",
        "group": "donor",
        "split": {"validation": 0.05, "test": 0.1},
    }
    assert cli.main(["prepare", "--config", json.dumps({"data": config}), "--out", "data"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")] == [
        f"note: {line}" for line in found
    ]
