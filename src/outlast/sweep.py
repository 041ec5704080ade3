"""The `sweep:` section: which runs an experiment has, and what each is called. No torch here."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.config import parse
from outlast.contradictions import unused_settings
from outlast.errors import ConfigError
from outlast.files import digest_values
from outlast.sections import Config

SWEPT_SECTIONS = ("model", "loss", "adversary", "regression", "training")
# runs that are selected by different metrics cannot be ranked in one leaderboard
UNSWEPT_KEYS = ("training.selection_metric",)
# file names end at 255 bytes, and the state files put their own names behind this one
LONGEST_NAME = 180
LONGEST_SLUG = 48
MOST_PROBLEMS = 20
# no comma: Snakemake hands wildcards to its jobs on a cluster as text with commas between them
SEPARATOR = "__"
SWEEP_KINDS = ("parameters", "replicates")


@dataclass(frozen=True)
class Run:
    """One training run of an experiment.

    Attributes:
        name: Folder name, made of the swept values: adding a value to the sweep renames nothing.
        setting: The part of the name that replicates share.
        values: Dotted key -> value, for every swept key.
        config: The run's own config, without a sweep.
    """

    name: str
    setting: str
    values: dict[str, Any]
    config: Config

    def values_of_numbers(self) -> dict[str, Any]:
        """Return the sections that shape the numbers, without defaults, as plain values.

        Snakemake compares this between two invocations: a run is trained again when it differs.
        """
        kept = {"experiment", "data", *SWEPT_SECTIONS}
        return self.config.model_dump(mode="json", include=kept, exclude_defaults=True)


def expand(content: Mapping[str, Any], source: str = "the configuration") -> list[Run]:
    """Return the runs of an experiment, in the order of its values; one without a sweep.

    Raises:
        ConfigError: A key or a value is wrong, in the base or in any run; or two runs are equal.
    """
    try:
        sweep = parse(content, source).sweep
    except ConfigError as error:
        # the base and the sweep on one screen
        swept = content.get("sweep")
        axes = [swept.get(kind) for kind in SWEEP_KINDS] if isinstance(swept, Mapping) else []
        named = [axis for axis in axes if isinstance(axis, Mapping)]
        problems = [problem for axis in named for problem in _wrong_keys(axis, {})]
        raise ConfigError([*error.problems, *problems], source) from None
    parameters, replicates = sweep.parameters, sweep.replicates
    if problems := _wrong_keys(parameters, replicates):
        raise ConfigError(problems, source)
    labels = _labels([*parameters, *replicates])
    base = {key: value for key, value in content.items() if key != "sweep"}
    runs, problems = [], []
    for values in _combinations({**parameters, **replicates}):
        try:
            run = _make_run(base, values, set(parameters), labels)
        except ConfigError as error:
            problems += [f"{problem} (in sweep)" for problem in error.problems]
            if len(problems) > MOST_PROBLEMS:
                break  # a misspelt key with a hundred values is one mistake
        else:
            runs.append(run)
    names = [run.name for run in runs]
    problems += [
        f"sweep: {name} comes up {names.count(name)} times: two of its values are equal or are"
        " written alike; remove one"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if problems := problems or unused_settings([run.config for run in runs]):
        raise ConfigError(dict.fromkeys(problems), source)
    return runs


def _wrong_keys(parameters: Mapping[str, Any], replicates: Mapping[str, Any]) -> list[str]:
    problems = [
        f"sweep: {key} stands in parameters and in replicates; keep one"
        for key in parameters
        if key in replicates
    ]
    every = [*parameters, *replicates]
    problems += [
        f"sweep: {key} is a part of {above}, which is swept too; sweep one of them"
        for key in every
        for above in every
        if key.startswith(f"{above}.")
    ]
    for key in [*parameters, *replicates]:
        if key in UNSWEPT_KEYS:
            problems.append(
                f"sweep: {key} cannot be swept, one leaderboard ranks by one metric; set it in its"
                " section, or write a second experiment file"
            )
        if key.split(".")[0] not in SWEPT_SECTIONS or "." not in key:
            problems.append(
                f"sweep: {key} cannot be swept; keys of {', '.join(SWEPT_SECTIONS)} can, as in"
                " training.learning_rate (for other data, write a second experiment file)"
            )
    return problems


def _combinations(axes: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _make_run(
    base: Mapping[str, Any], values: Mapping[str, Any], parameters: set[str], labels: dict[str, str]
) -> Run:
    content: Mapping[str, Any] = base
    for key, value in values.items():
        content = _with_value(content, key.split("."), value)
    config = parse(content)
    # the checked value, so that 1e-3 and 0.001 are one name
    checked = {key: _value_at(config, key) for key in values}
    words = {key: f"{labels[key]}={_slug(value)}" for key, value in checked.items()}
    return Run(
        name=_join(list(words.values())),
        setting=_join([word for key, word in words.items() if key in parameters]),
        values=checked,
        config=config,
    )


def _with_value(content: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Return a copy of nested ``content`` with ``value`` at ``path``."""
    head, *rest = path
    if not rest:
        return {**content, head: value}
    below = content.get(head)
    return {**content, head: _with_value(below if isinstance(below, Mapping) else {}, rest, value)}


def _value_at(config: Config, key: str) -> Any:
    value: Any = config.model_dump(mode="json")
    for name in key.split("."):
        value = value[name]
    return value


def _join(words: list[str]) -> str:
    name = SEPARATOR.join(words) or "run"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}~{digest_values(name)[:8]}"


def _labels(keys: list[str]) -> dict[str, str]:
    """Return the last word of each dotted key, or the whole key where two would share it."""
    last = [key.rsplit(".", 1)[-1] for key in keys]
    return {
        key: word if last.count(word) == 1 else key for key, word in zip(keys, last, strict=True)
    }


def _slug(value: Any) -> str:
    """Return a short text for a value that is safe in file names and shells."""
    text = re.sub(r"[^\w.+-]+", "-", _words(value)).strip("-")
    if 0 < len(text) <= LONGEST_SLUG:
        return text
    return f"{text[: LONGEST_SLUG - 9]}~{digest_values(value)[:8]}"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{key}-{_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "-".join(_words(item) for item in value)
    return str(value)
