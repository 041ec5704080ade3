"""Reading an experiment file: typed, checked, with every problem on one screen. No torch here."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError

from outlast.contradictions import contradictions, empty_axes
from outlast.errors import ConfigError
from outlast.sections import Config, Section


def load(path: Path) -> Config:
    """Read an experiment file.

    Raises:
        ConfigError: The file is no YAML mapping, or a key or value is wrong (all of them named).
    """
    return parse(read_yaml(path), source=str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping without checking its keys."""
    try:
        content = yaml.load(path.read_text(), _Loader)
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror}"], str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"no valid YAML: {error}"], str(path)) from error
    if not isinstance(content, dict):
        raise ConfigError(["a mapping of keys to values is needed"], str(path))
    return content


class _Loader(yaml.SafeLoader):
    """Refuses a key that YAML would drop or change in silence: a second one, or the number 01."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            value, line = self.construct_object(key, deep=True), key.start_mark.line + 1
            problem = None
            if isinstance(value, int) and str(value).lower() != key.value.lower():
                problem = f"YAML reads it as {value} (line {line}); put it in quotes"
            elif key.value in seen:
                problem = f"stands twice in one section (line {line}); keep one"
            if problem:
                raise ConfigError([f"{key.value}: {problem}"], "the experiment file")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(content: Mapping[str, Any], source: str = "the configuration") -> Config:
    """Check plain values and return the typed experiment.

    Raises:
        ConfigError: With one line per wrong key or value.
    """
    values = _read_exponents(dict(content))
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = [_describe(problem) for problem in found if not _is_other_kind(problem)]
        problems += _contradictions_beside(values, [problem["loc"] for problem in found])
        raise ConfigError(dict.fromkeys(problems), source) from None
    is_swept = config.sweep.parameters or config.sweep.replicates
    # of a sweep each run is judged by itself: a swept value may be what makes the others legal
    if problems := list(empty_axes(config)) if is_swept else contradictions(config):
        raise ConfigError(problems, source)
    return config


def _contradictions_beside(values: Any, wrong: Sequence[Sequence[Any]]) -> list[str]:
    """Return the contradictions among the values that are right, so that one screen has all."""
    for path in wrong:
        values = _without(values, path)
    try:
        config = Config.model_validate(values)
    except ValidationError:  # a key without a default is missing
        return []
    if config.sweep.parameters or config.sweep.replicates:
        return []
    # what a rule says of a value that was taken out is no news
    keys = [".".join(map(str, path[:2])) for path in wrong]
    return [line for line in contradictions(config) if not any(key in line for key in keys)]


def _without(values: Any, path: Sequence[Any]) -> Any:
    """Return nested values without what is at ``path``, or without what is around it."""
    head, *rest = path
    if not isinstance(values, Mapping) or head not in values:
        return values
    below = _without(values[head], rest) if rest else values[head]
    if below is values[head]:  # the end of the path, or within a list
        return {key: value for key, value in values.items() if key != head}
    return {**values, head: below}


# YAML 1.1 reads 1e-3 (no dot) as text. Everybody means the number.
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def _read_exponents(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _read_exponents(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_exponents(item) for item in value]
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value


def _is_other_kind(problem: Any) -> bool:
    """Tell whether pydantic complains that a list or a number is not one of the words."""
    is_of_union = "[" in str(problem["loc"][-1])
    return bool(
        problem["type"] == "literal_error"
        and is_of_union
        and isinstance(problem["input"], list | int | float)
    )


def _describe(problem: Any) -> str:
    """Turn one finding of pydantic into a line with key, value and what to do."""
    # pydantic adds the names of union members to the path: keep what the user wrote
    path = [str(part) for part in problem["loc"] if "[" not in str(part) and part != "float"]
    key, value = ".".join(path), problem["input"]
    if problem["type"] == "extra_forbidden":
        legal = legal_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], legal, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]}?" if near else f"legal here: {', '.join(legal)}"
        return f"{key}: unknown key (value {value!r}); {advice}"
    if problem["type"] == "missing":
        return f"{key}: this key has no default; add it"
    if message := _plain_words(problem["type"], problem["msg"], key):
        return f"{key}: {value!r} is not allowed; {message}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{key}: {value!r} is not allowed; {message}"


def _plain_words(kind: str, message: str, key: str) -> str | None:
    """Say in a user's words what pydantic says in its own."""
    if key == "model.network":
        return "should be mlp, cnn1d, cnn2d, file.py:Class or module:Class"
    if key == "data.threshold":
        return "a number or median is needed"
    if key == "loss.class_weights":
        return "none, auto, or a list of positive numbers is needed"
    if key == "data.inputs":
        return "a list of names or patterns is needed, or a mapping of array names to patterns"
    if kind == "string_pattern_mismatch":
        return "letters, digits, . _ - are allowed, and the first must be a letter or digit"
    if kind == "string_type":
        return "text is needed: put it in quotes"
    if kind == "model_type" or (kind == "dict_type" and "." not in key):
        return "a section with keys below it is needed; remove it to take the defaults"
    return None


def legal_keys(path: list[str]) -> list[str]:
    """Return the keys that may stand in the section at ``path`` (empty: the top level)."""
    section: Any = Config
    for name in path:
        if name not in section.model_fields:
            return []
        section = section.model_fields[name].annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            return []
    return list(section.model_fields)


def choices(annotation: Any) -> list[str]:
    """Return the legal words of a ``Literal`` type, or an empty list for any other type."""
    return (
        [str(value) for value in get_args(annotation)] if get_origin(annotation) is Literal else []
    )
