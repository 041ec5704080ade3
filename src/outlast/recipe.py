"""The recipe of a run: everything that shapes its numbers, and the fingerprint of that.

A state file continues only under the fingerprint that it was made with. Paths, ranks, threads,
intervals and names are no part of it; content is.
"""

from collections.abc import Mapping
from typing import Any

from outlast.files import digest_values
from outlast.sections import Config

Recipe = dict[str, Any]

# sections of the config that shape the numbers of a run
NUMBER_SECTIONS = {"data", "model", "loss", "adversary", "regression", "training"}
# How long a run lasts, not what it computes: train.stopping decides whether a state may go on.
STOPPING_KEYS = frozenset({"training.epochs", "training.early_stopping_patience"})
# Where the rows come from. Their content is in the recipe, as the facts `data.content` and
# `data.content.ROLE` for each role that is used.
SOURCE_KEYS = frozenset(
    f"data.{key}"
    for key in ("source", "inputs", "label", "group", "noise_group", "confound", "target")
)


def recipe(config: Config, facts: Mapping[str, Any]) -> Recipe:
    """Return what shapes the numbers of a run, flat: dotted key -> plain value.

    Args:
        config: The run's config.
        facts: Dotted keys that only data or code can tell, such as ``data.content``. They
            replace config values of the same key (``loss.name: auto`` becomes ``bce``).
    """
    sections = config.model_dump(mode="json", include=NUMBER_SECTIONS)
    keys = _flatten(sections) | dict(facts)
    idle = idle_keys(config) | SOURCE_KEYS | STOPPING_KEYS
    if config.training.scheduler.name == "cosine":
        idle -= {"training.epochs"}
    # also `data.inputs.expression`, when `data.inputs` is a mapping
    kept = {key for key in keys if not any(f"{key}.".startswith(f"{name}.") for name in idle)}
    return {key: keys[key] for key in sorted(kept)}


def fingerprint(keys: Recipe) -> str:
    """Return the SHA-256 of a recipe as hexadecimal digits."""
    return digest_values(keys)


def is_same(one: Recipe, other: Recipe) -> bool:
    """Tell whether two recipes have one fingerprint.

    Not ``==``, for which 1 and true are equal, and NaN is not equal to itself.
    """
    return fingerprint(one) == fingerprint(other)


def changed_keys(old: Recipe, new: Recipe) -> list[str]:
    """Name the keys in which two recipes differ, each with both values."""
    return [
        f"{key} ({_shown(old, key)} -> {_shown(new, key)})"
        for key in sorted(old.keys() | new.keys())
        if not is_same(_entry(old, key), _entry(new, key))
    ]


def idle_keys(config: Config) -> frozenset[str]:
    """Name the keys, or whole sections, that have no effect under this config."""
    training = config.training
    idle: set[str] = set()
    if training.scheduler.name != "reduce_on_plateau":
        idle |= {"training.scheduler.patience", "training.scheduler.factor"}
    if training.optimizer != "sgd":
        idle.add("training.momentum")
    if config.loss.name != "focal":
        idle |= {"loss.gamma", "loss.neg_gamma"}
    if not config.loss.name.startswith("noise_corrected"):
        idle.add("loss.label_noise")
    if not config.adversary.strength:
        idle.add("adversary")
    if not config.regression.weight:
        idle.add("regression")
    if not config.adversary.strength and not config.regression.weight:
        idle.add("model.head")
    if config.data.split.validation == 0:
        idle.add("training.early_stopping_patience")
    if training.augment.time_mask.count == 0:
        idle.add("training.augment.time_mask")
    return frozenset(idle)


def used_roles(config: Config) -> set[str]:
    """Return the roles of the data that shape the numbers of a run, beside its splits."""
    is_used = {
        "noise_group": config.loss.name == "noise_corrected_bce"
        or config.training.sampling == "balance_groups",
        "confound": config.adversary.strength > 0,
        "target": config.regression.weight > 0,
    }
    return {role for role, used in is_used.items() if used}


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, Mapping) or not values:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        # a dot in the name of an option is no step down
        name = str(key).replace("\\", "\\\\").replace(".", "\\.")
        flat |= _flatten(value, f"{prefix}.{name}" if prefix else name)
    return flat


def _entry(keys: Recipe, key: str) -> Recipe:
    return {key: keys[key]} if key in keys else {}


def _shown(keys: Recipe, key: str) -> str:
    text = str(keys.get(key, "absent"))
    return text if len(text) <= 40 else f"{text[:12]}..."
