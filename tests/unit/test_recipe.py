"""The recipe: what a state may be continued under."""

import pytest

from outlast.config import parse
from outlast.recipe import changed_keys, fingerprint, is_same, recipe, used_roles

FACTS = {"data.content": "c" * 64, "loss.name": "cross_entropy"}


def recipe_of(facts=FACTS, data=None, **sections):
    """Return the recipe of a small experiment with these sections."""
    return recipe(parse({"data": {"source": "digits", **(data or {})}, **sections}), facts)


def test_a_fact_replaces_what_the_config_left_open():
    """`loss: auto` and the loss it stands for are one recipe."""
    assert recipe_of()["loss.name"] == "cross_entropy"
    assert recipe_of() == recipe_of(loss={"name": "cross_entropy"})


@pytest.mark.parametrize(
    "change",
    [
        {"launch": {"processes": 4, "threads": 2, "device": "cpu"}},
        {"checkpoint": {"every_seconds": 1}},
        {"resources": {"runtime": 5, "mem_mb": 9}},
        {"experiment": "renamed"},
        {"sweep": {"parameters": {"training.seed": [0, 1]}}},
        {"data": {"source": "copy/of/digits.npz", "label": "y", "inputs": ["x"]}},
        {"training": {"epochs": 99}},
        {"training": {"early_stopping_patience": 3}},
        {"training": {"momentum": 0.5}},
        {"training": {"scheduler": {"patience": 1, "factor": 0.1}}},
        {"training": {"augment": {"time_mask": {"width": 3}}}},
        {"loss": {"gamma": 3}},
        {"loss": {"label_noise": {"rates": {"a": 0.1}, "sink": "b"}}},
        {"adversary": {"anneal_epochs": 3}, "regression": {"range": "unit"}},
        {"data": {"group": "g", "confound": "c", "target": "t"}, "model": {"head": "last"}},
    ],
)
def test_what_shapes_no_number_is_no_part_of_it(change):
    """Machine, names, paths, stopping and keys without effect leave the fingerprint alone."""
    assert fingerprint(recipe_of(**change)) == fingerprint(recipe_of())


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"learning_rate": 0.5}},
        {"training": {"batch_size": 7}},
        {"training": {"seed": 1}},
        {"training": {"grad_accum_split": 2}},
        {"training": {"optimizer": "sgd"}},
        {"training": {"scheduler": {"name": "cosine"}}},
        {"model": {"options": {"hidden": [8]}}},
        {"data": {"normalize": "standard"}},
        {"data": {"split": {"seed": 1}}},
        {"facts": {**FACTS, "data.content": "d" * 64}},
    ],
)
def test_what_shapes_the_numbers_changes_the_fingerprint(change):
    """Every value that training reads, and the content of the data, is part of it."""
    assert fingerprint(recipe_of(**change)) != fingerprint(recipe_of())


def test_keys_count_only_where_they_work():
    """Momentum counts for sgd, plateau's keys for plateau, epochs for cosine."""

    def differs(fixed, one, other):
        return recipe_of(training=fixed | one) != recipe_of(training=fixed | other)

    assert differs({"optimizer": "sgd"}, {"momentum": 0.1}, {"momentum": 0.2})
    plateau = [{"scheduler": {"name": "reduce_on_plateau", "factor": f}} for f in (0.1, 0.2)]
    assert differs({}, *plateau)
    assert differs({"scheduler": {"name": "cosine"}}, {"epochs": 5}, {"epochs": 6})


@pytest.mark.parametrize(
    ("sections", "used"),
    [
        ({}, set()),
        ({"adversary": {"strength": 1}}, {"confound"}),
        ({"regression": {"weight": 1}}, {"target"}),
        ({"training": {"sampling": "balance_groups"}}, {"noise_group"}),
        (
            {"loss": {"name": "noise_corrected_bce", "label_noise": {"rates": {"a": 0.1}}}},
            {"noise_group"},
        ),
        (
            {
                "loss": {
                    "name": "noise_corrected_ce",
                    "label_noise": {"rates": {"a": 0.1}, "sink": "b"},
                }
            },
            set(),
        ),
    ],
)
def test_roles_that_shape_the_numbers(sections, used):
    """Beside the splits, which the group shapes: a named role without a reader is none."""
    data = {"source": "x.csv", "group": "g", "confound": "c", "target": "t"}
    assert used_roles(parse({"data": data, **sections})) == used


def test_the_order_of_keys_means_nothing():
    """Two files that say the same in another order have one fingerprint."""
    one = recipe_of(training={"seed": 3, "batch_size": 8}, model={"options": {"a": 1, "b": 2}})
    two = recipe_of(model={"options": {"b": 2, "a": 1}}, training={"batch_size": 8, "seed": 3})
    assert list(one) == list(two)
    assert fingerprint(one) == fingerprint(two)


def test_changed_keys_name_both_values():
    """The message of a refused state shows key, old and new value, long ones cut short."""
    old = recipe_of()
    new = recipe_of(training={"seed": 4}, facts={**FACTS, "data.content": "d" * 64})
    assert changed_keys(old, new) == [
        f"data.content ({'c' * 12}... -> {'d' * 12}...)",
        "training.seed (0 -> 4)",
    ]
    assert changed_keys(old, old) == []
    assert changed_keys({}, {"model.options.a": 1}) == ["model.options.a (absent -> 1)"]


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"v": 1}, {"v": True}, ["model.options.v (1 -> True)"]),
        ({"v": 1}, {"v": 1.0}, ["model.options.v (1 -> 1.0)"]),
        ({"v": [0]}, {"v": [False]}, ["model.options.v ([0] -> [False])"]),
        ({"v": None}, {}, ["model.options (absent -> {})", "model.options.v (None -> absent)"]),
        (
            {"a.b": 1},
            {"a": {"b": 1}},
            ["model.options.a.b (absent -> 1)", r"model.options.a\.b (1 -> absent)"],
        ),
        ({"a\\": {"b": 1}}, {"a\\.b": 1}, None),
    ],
)
def test_options_that_python_takes_for_equal_are_told_apart(one, other, said):
    """They are other values to a network: another recipe, and the message names them."""
    one, other = (recipe_of(model={"options": options}) for options in (one, other))
    assert not is_same(one, other)
    assert said in (None, changed_keys(one, other))
    assert is_same(one, dict(one))


def test_a_number_that_is_none_is_the_same_recipe():
    """NaN, which is not equal to itself."""
    one, other = (recipe_of(model={"options": {"v": float(x)}}) for x in ("nan", "nan"))
    assert is_same(one, other)
    assert changed_keys(one, other) == []
