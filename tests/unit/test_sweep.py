"""The sweep: which runs there are, and names that stay."""

import re

import pytest
from snakemake.target_jobs import parse_target_jobs_cli_args
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args

from outlast.errors import ConfigError
from outlast.sweep import expand

BASE = {"data": {"source": "digits"}, "training": {"epochs": 3}}


def experiment(parameters=None, replicates=None, **sections):
    """Return the smallest experiment with this sweep."""
    sweep = {"parameters": parameters or {}, "replicates": replicates or {}}
    return {**BASE, **sections, "sweep": sweep}


def problems_of(content):
    """Return what is wrong with an experiment's sweep."""
    with pytest.raises(ConfigError) as caught:
        expand(content)
    return caught.value.problems


def test_without_a_sweep_there_is_one_run():
    """An experiment without a sweep is a single run called run."""
    (run,) = expand(BASE)
    assert (run.name, run.setting, run.values) == ("run", "run", {})


def test_every_combination_is_a_run():
    """Two rates with two seeds give four runs; seeds share the setting of their rate."""
    runs = expand(experiment({"training.learning_rate": [0.1, 0.2]}, {"training.seed": [0, 1]}))
    assert [run.name for run in runs] == [
        "learning_rate=0.1__seed=0",
        "learning_rate=0.1__seed=1",
        "learning_rate=0.2__seed=0",
        "learning_rate=0.2__seed=1",
    ]
    assert [run.setting for run in runs[1:3]] == ["learning_rate=0.1", "learning_rate=0.2"]
    assert runs[3].config.training.learning_rate == 0.2
    assert runs[3].config.training.seed == 1
    assert runs[3].values == {"training.learning_rate": 0.2, "training.seed": 1}


def test_a_swept_value_replaces_its_own_key_only():
    """The rest of the section stays as the base has it."""
    (run,) = expand(experiment({"training.scheduler.name": ["cosine"]}))
    assert run.config.training.epochs == 3
    assert run.config.training.scheduler.name == "cosine"
    assert not run.config.sweep.parameters


def test_adding_a_value_or_reordering_renames_nothing():
    """Names come from values, not from positions (story 58)."""
    few = {run.name: run for run in expand(experiment({"training.batch_size": [16, 32]}))}
    many = {run.name: run for run in expand(experiment({"training.batch_size": [64, 32, 16]}))}
    assert few.keys() < many.keys()
    assert all(few[name].values_of_numbers() == many[name].values_of_numbers() for name in few)


def test_one_value_written_in_two_ways_is_one_name():
    """1e-3, 0.001 and 1.0e-3 name the same run, and both together are refused."""
    names = {
        expand(experiment({"training.learning_rate": [value]}))[0].name
        for value in ("1e-3", 0.001, 1.0e-3)
    }
    assert names == {"learning_rate=0.001"}
    (problem,) = problems_of(experiment({"training.learning_rate": ["1e-3", 0.001]}))
    assert problem.startswith("sweep: learning_rate=0.001 comes up 2 times")


def test_names_are_safe_in_paths_and_shells():
    """What is unsafe becomes a dash and stays readable; what is long ends in a digest."""
    values = [[16, 32], "a/b.py:Net", "two words", {"deep": [1], "x": 0.5}, "x" * 50, "../.."]
    names = [run.name for run in expand(experiment({"model.options.thing": values}))]
    assert names[:4] == [
        "thing=16-32",
        "thing=a-b.py-Net",
        "thing=two-words",
        "thing=deep-1-x-0.5",
    ]
    assert re.fullmatch(r"thing=x{39}~[0-9a-f]{8}", names[4])
    assert names[5] == "thing=..-.."
    assert len(set(names)) == len(values)


def test_a_part_of_a_swept_key_is_refused():
    """Two axes that write into each other would name runs after values that they do not have."""
    sweep = {"model.options": [{"b": 1}], "model.options.a": [1, 2]}
    for axes in (sweep, dict(reversed(sweep.items()))):
        (problem,) = problems_of(experiment(axes))
        assert "model.options.a is a part of model.options" in problem


def test_base_and_sweep_are_on_one_screen():
    """A wrong key of the base does not hide a wrong key of the sweep."""
    content = experiment({"training": [1]})
    content["training"] = {"epoch": 3}
    problems = problems_of(content)
    assert len(problems) == 2, problems


def test_one_misspelt_key_does_not_fill_the_screen():
    """A hundred values of a misspelt key are one mistake."""
    assert len(problems_of(experiment({"training.learning_rte": list(range(1, 101))}))) <= 25


def test_keys_that_share_a_last_word_are_named_in_full():
    """Two swept keys called `name` do not hide each other."""
    sweep = {"loss.name": ["auto"], "training.scheduler.name": ["cosine"], "training.seed": [1]}
    (run,) = expand(experiment(sweep))
    assert run.name == "loss.name=auto__training.scheduler.name=cosine__seed=1"


@pytest.mark.parametrize("key", ["data.normalize", "launch.processes", "training", "epochs", ""])
def test_only_what_a_run_may_change_can_be_swept(key):
    """Data are prepared once for all runs; the machine is no part of an experiment."""
    (problem,) = problems_of(experiment({key: [1]}))
    sections = "model, loss, adversary, regression, training"
    assert problem.startswith(f"sweep: {key} cannot be swept; keys of {sections} can")


def test_the_metric_that_ranks_the_runs_cannot_be_swept():
    """One leaderboard ranks by one metric."""
    (problem,) = problems_of(experiment({"training.selection_metric": ["val_f1", "val_acc"]}))
    assert "training.selection_metric cannot be swept, one leaderboard ranks by one" in problem


def test_a_name_fits_into_a_file_name():
    """Many axes with long values: cut, with a digest that keeps the names apart."""
    options = {f"model.options.a_long_keyword_{i}": [f"{'v' * 30}{i}"] for i in range(9)}
    one, other = expand(experiment(options, {"training.seed": [1, 2]}))
    assert len(one.name.encode()) <= 180
    assert one.name != other.name
    assert one.setting == other.setting


def test_a_key_stands_in_one_place():
    """A key that is parameter and replicate at once is refused."""
    (problem,) = problems_of(experiment({"training.seed": [0]}, {"training.seed": [1]}))
    assert "training.seed stands in parameters and in replicates" in problem


def test_a_wrong_value_in_the_sweep_is_named_once():
    """A bad value is reported once, not once per run, and good ones do not hide it."""
    found = problems_of(
        experiment({"training.learning_rate": [0.1, -1.0]}, {"training.seed": [0, 1]})
    )
    assert len(found) == 1
    assert found[0].startswith("training.learning_rate: -1.0 is not allowed")
    assert found[0].endswith("(in sweep)")


def test_a_misspelt_swept_key_is_told_the_nearest():
    """The sweep's keys are checked like any other."""
    (problem,) = problems_of(experiment({"training.learning_rte": [0.1]}))
    assert "did you mean learning_rate?" in problem


def test_contradictions_are_found_in_every_run():
    """A combination that is wrong together is an error before anything starts."""
    data = {"source": "digits", "split": {"validation": 0}}
    sweep = {"training.scheduler.name": ["none", "reduce_on_plateau"]}
    (problem,) = problems_of(experiment(sweep, data=data))
    assert "reduce_on_plateau watches the validation split" in problem


def test_the_values_that_trigger_a_rerun():
    """They hold what shapes numbers, and nothing of the machine, the interval or the sweep."""
    machine = {
        "launch": {"processes": 4},
        "checkpoint": {"every_seconds": 1},
        "resources": {"runtime": 9},
    }
    plain = expand(experiment({"training.seed": [7]}))[0].values_of_numbers()
    other = expand(experiment({"training.seed": [7, 8]}, **machine))[0].values_of_numbers()
    assert plain == other == {"data": {"source": "digits"}, "training": {"epochs": 3, "seed": 7}}


def test_a_thousand_runs_have_a_thousand_names():
    """A large grid expands without a clash."""
    axes = {"training.seed": list(range(100)), "training.batch_size": list(range(1, 11))}
    assert len({run.name for run in expand(experiment(axes))}) == 1000


def test_a_name_reaches_a_job_on_a_cluster():
    """Snakemake hands it over as text, where a comma in it begins a new wildcard."""
    axes = {"model.options": [{"hidden": [8, 4]}], "training.scheduler.name": ["cosine"]}
    (run,) = expand(experiment(axes, {"training.learning_rate": [1e-3]}))
    sent = encode_target_jobs_cli_args([TargetSpec("train", {"experiment": "e", "run": run.name})])
    (received,) = parse_target_jobs_cli_args(sent)
    assert received.wildcards_dict == {"experiment": "e", "run": run.name}
