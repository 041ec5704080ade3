"""What is allowed in an experiment and yet worth a look before it trains for a night."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from outlast.check.findings import Resolved
from outlast.data.splits import notable_splits
from outlast.errors import listed
from outlast.recipe import idle_keys, used_roles
from outlast.sections import Config

# role of the data -> why nothing reads it
SWITCHES = {
    "confound": "adversary.strength is 0",
    "target": "regression.weight is 0",
    "noise_group": "loss.name is not noise_corrected_bce, training.sampling not balance_groups",
}


def notes(resolved: Resolved) -> Iterator[str]:
    """Yield a line for each thing that is not as one may think."""
    data, configs = resolved.data, [run.config for run in resolved.runs]
    section = configs[0].data.split
    yield from notable_splits(data.label, data.splits, section, data.classes)
    confound, group = configs[0].data.confound, configs[0].data.group
    if confound is not None and confound == group:
        yield f"data.confound: {group} is data.group too: held-out rows have other values"
    yield from _without_effect(configs)
    yield from _without_rate(resolved, configs)
    is_half = any(config.training.precision == "float16" for config in configs)
    if is_half and not torch.cuda.is_available():
        yield "training.precision: float16 needs a GPU, and this machine shows none"


def _without_effect(configs: Sequence[Config]) -> Iterator[str]:
    """Yield the keys that were set, and that no run uses."""
    idle = frozenset.intersection(*map(idle_keys, configs))
    set_keys = _dotted(configs[0].model_dump(mode="json", exclude_defaults=True))
    used = set[str]().union(*map(used_roles, configs))
    for role, switch in SWITCHES.items():
        if getattr(configs[0].data, role) is not None and role not in used:
            yield f"data.{role} is set and no run uses it: {switch}"
    for key in set_keys:
        if any(f"{key}.".startswith(f"{above}.") for above in idle):
            yield f"{key} is set and has no effect: what it belongs to is off, or another kind"


def _without_rate(resolved: Resolved, configs: Sequence[Config]) -> Iterator[str]:
    """Yield the noise groups whose labels are taken as right because no rate is given."""
    names = resolved.data.roles.names.get("noise_group", [])
    lacking: dict[str, None] = {}
    for config in configs:
        if config.loss.name == "noise_corrected_bce":
            rates = config.loss.label_noise.rates
            lacking |= dict.fromkeys(name for name in names if name not in rates)
    if lacking:
        shown = listed(list(lacking))
        yield f"loss.label_noise.rates: none for {shown}, whose labels count as right"


def _dotted(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        keys += _dotted(value, f"{key}.") if isinstance(value, Mapping) and value else [key]
    return keys
