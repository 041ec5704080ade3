"""A checked experiment on one screen of 80 columns: the data, the parts, the runs."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from outlast.check.findings import Resolved
from outlast.check.notes import notes
from outlast.report.wording import shorten, wrap_name
from outlast.sections import Config

WIDTH = 80
INDENT = 13  # of what stands behind the word that says what it is
MOST_LINES = 20  # classes, or runs
MOST_VALUES = 5  # of one swept key


def show(resolved: Resolved) -> None:
    """Print what was found and what will run."""
    for line in _lines(resolved):
        print(line)


def _lines(resolved: Resolved) -> Iterator[str]:
    config = resolved.runs[0].config
    yield from _entry("experiment", f"{config.experiment} ({resolved.source})")
    yield from _data(resolved, config)
    yield from _classes(resolved)
    yield from _parts(resolved, config)
    yield from _runs(resolved)
    for note in notes(resolved):
        yield from _entry("note", note)
    count = len(resolved.runs)
    yield ""
    yield f"{count:,} run{'s' if count > 1 else ''}, all checks passed"


def _data(resolved: Resolved, config: Config) -> Iterator[str]:
    data, section = resolved.data, config.data
    rows = len(data.label)
    yield from _entry("data", f"{section.source}: {rows:,} rows")
    inputs = (f"{name} {_shape(shape)}" for name, shape in data.row_shapes.items())
    yield from _entry("inputs", ", ".join(inputs))
    for role in ("group", "noise_group"):
        if name := getattr(section, role):
            yield from _entry(role, f"{name}: {len(data.roles.names[role]):,} groups")
    if (confound := data.roles.get("confound")) is not None:
        known, names = int((confound >= 0).sum()), data.roles.names["confound"]
        text = f"{section.confound}: {len(names):,} values, known in {known:,} of {rows:,} rows"
        yield from _entry("confound", text)
    if (target := data.roles.get("target")) is not None:
        valid = ~np.isnan(target)
        if config.regression.range == "unit":
            valid &= target >= 0
        yield from _entry("target", f"{section.target}: valid in {int(valid.sum()):,} rows")


def _shape(shape: Sequence[int]) -> str:
    if len(shape) > 1:
        return f"({' x '.join(map(str, shape))})"
    size = shape[0] if shape else 1
    return f"({size:,} value{'s' if size > 1 else ''})"


def _classes(resolved: Resolved) -> Iterator[str]:
    data = resolved.data
    number = len(data.classes)
    counts = [np.bincount(data.label[rows], minlength=number) for rows in data.splits.values()]
    yield _row(f"{'classes':<{INDENT}}{number:,}", data.splits)
    for index, name in list(enumerate(data.classes))[:MOST_LINES]:
        label = " " * INDENT + shorten(name, 30)
        yield _row(label, [f"{count[index]:,}" for count in counts])
    yield from _more(number)


def _row(label: str, cells: Iterable[str]) -> str:
    return f"{label:<{INDENT + 31}}" + "".join(f"{cell:>12}" for cell in cells)


def _parts(resolved: Resolved, config: Config) -> Iterator[str]:
    configs = [run.config for run in resolved.runs]
    sizes = resolved.parameters
    size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    networks = dict.fromkeys(run.model.network for run in configs)
    yield from _entry("network", f"{', '.join(networks)}: {size} parameters{_heads(configs)}")
    by_auto = all(run.loss.name == "auto" for run in configs)
    yield from _entry("loss", ", ".join(resolved.losses) + " (auto)" * by_auto)
    if len(resolved.data.splits["validation"]) == 0:
        yield from _entry("selection", "the last epoch: there is no validation split")
    else:
        is_auto = config.training.selection_metric == "auto"
        yield from _entry("selection", resolved.metric + " (auto)" * is_auto)
    launch = config.launch
    nodes = f" on {launch.nodes} nodes" if launch.nodes > 1 else ""
    yield from _entry("ranks", f"{launch.world_size} per run{nodes}, device {launch.device}")


def _heads(configs: Sequence[Config]) -> str:
    used = {
        "an adversary": any(config.adversary.strength > 0 for config in configs),
        "a regression": any(config.regression.weight > 0 for config in configs),
    }
    names = [name for name, is_used in used.items() if is_used]
    return f", with {' and '.join(names)}" if names else ""


def _runs(resolved: Resolved) -> Iterator[str]:
    for key in resolved.runs[0].values:
        values = list(dict.fromkeys(str(run.values[key]) for run in resolved.runs))
        more = f" and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
        yield from _entry("sweep", f"{key}: {', '.join(values[:MOST_VALUES])}{more}")
    word = "runs"
    for run in resolved.runs[:MOST_LINES]:
        for line in wrap_name(run.name, WIDTH - INDENT):
            yield f"{word:<{INDENT}}{line}"
            word = ""
    yield from _more(len(resolved.runs))


def _more(number: int) -> Iterator[str]:
    if number > MOST_LINES:
        yield f"{'':<{INDENT}}... and {number - MOST_LINES:,} more"


def _entry(word: str, text: Any) -> list[str]:
    """Return a word and what is said of it, folded."""
    return textwrap.wrap(
        f"{word:<{INDENT}}{text}",
        WIDTH,
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
