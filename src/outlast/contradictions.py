"""What is right key by key and wrong together. Each has a line with key, value and fix."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.sections import Config, LossSection


@dataclass(frozen=True)
class Contradiction:
    """One rule.

    Attributes:
        holds: Tells whether a config breaks it.
        message: With the sections in braces: ``{loss.name}``, ``{data.split.test}``.
    """

    holds: Callable[[Config], Any]
    message: str

    def line(self, config: Config) -> str:
        """Return the message, with the values of ``config``."""
        sections = {name: getattr(config, name) for name in type(config).model_fields}
        return self.message.format(**sections)


def contradictions(config: Config) -> list[str]:
    """Return a line for each rule that ``config`` breaks."""
    broken = [rule.line(config) for rule in RULES if rule.holds(config)]
    return [*broken, *empty_axes(config)]


def unused_settings(configs: Sequence[Config]) -> list[str]:
    """Return a line for each setting of a loss that no run has.

    Of all runs: a sweep over losses gives each of them what only some use.
    """
    return [rule.line(configs[0]) for rule in UNUSED if all(map(rule.holds, configs))]


def empty_axes(config: Config) -> Iterator[str]:
    """Yield a line for each axis of the sweep without a value."""
    for name, values in [*config.sweep.parameters.items(), *config.sweep.replicates.items()]:
        if not values:
            yield f"sweep: {name} has no values; give at least one, or remove the key"


def _corrects_noise(config: Config) -> bool:
    return config.loss.name.startswith("noise_corrected")


def _no_noise_group(config: Config) -> bool:
    return not (config.data.noise_group or config.data.group)


RULES = (
    Contradiction(
        lambda c: c.training.augment.min_scale > c.training.augment.max_scale,
        "training.augment.min_scale: {training.augment.min_scale} is above max_scale"
        " {training.augment.max_scale}; swap them",
    ),
    Contradiction(
        lambda c: c.data.split.validation + c.data.split.test >= 1,
        "data.split: validation {data.split.validation} + test {data.split.test} leave nothing to"
        " train on; their sum must be below 1",
    ),
    Contradiction(
        lambda c: c.data.split.validation + c.data.split.test == 0,
        "data.split: validation and test are both 0, so that nothing is left to evaluate on;"
        " give one of them a share",
    ),
    Contradiction(
        lambda c: c.data.threshold == "median" and c.data.split.stratify,
        "data.threshold: median is that of the training split, and data.split.stratify is true,"
        " which needs the classes before; set data.split.stratify: false",
    ),
    Contradiction(
        lambda c: c.data.split.validation == 0 and c.training.scheduler.name == "reduce_on_plateau",
        "training.scheduler.name: reduce_on_plateau watches the validation split, and"
        " data.split.validation is 0; use none or cosine, or give it a share",
    ),
    Contradiction(
        lambda c: c.data.split.validation == 0 and c.training.selection_metric != "auto",
        "training.selection_metric: {training.selection_metric} needs a validation"
        " split, and data.split.validation is 0; remove the key or give it a share",
    ),
    Contradiction(
        lambda c: _corrects_noise(c) and not c.loss.label_noise.rates,
        "loss.label_noise.rates: {loss.name} needs them; give at least one",
    ),
    Contradiction(
        lambda c: c.loss.name == "noise_corrected_bce" and _no_noise_group(c),
        "loss.label_noise.rates: its keys are values of data.noise_group, which is not set;"
        " name the column",
    ),
    Contradiction(
        lambda c: c.loss.name == "noise_corrected_ce" and c.loss.label_noise.sink is None,
        "loss.label_noise.sink: noise_corrected_ce needs it; name a class",
    ),
    Contradiction(
        lambda c: c.loss.label_noise.rates.get(c.loss.label_noise.sink or "", 0) > 0,
        "loss.label_noise.rates: {loss.label_noise.sink} is the sink, whose own labels are right;"
        " remove its rate",
    ),
    Contradiction(
        lambda c: c.loss.class_weights != "none" and c.training.sampling != "shuffle",
        "loss.class_weights: {loss.class_weights}, and training.sampling: {training.sampling};"
        " together they correct twice: drop one of the two keys",
    ),
    Contradiction(
        lambda c: c.training.sampling == "balance_groups" and _no_noise_group(c),
        "training.sampling: balance_groups needs data.noise_group or data.group; name a column",
    ),
    Contradiction(
        lambda c: c.training.precision == "float16" and c.launch.device == "cpu",
        "training.precision: float16 needs a GPU, and launch.device is cpu; use bfloat16",
    ),
    Contradiction(
        lambda c: c.resources.gpus and c.launch.device == "cpu",
        "resources.gpus: {resources.gpus}, and launch.device: cpu would leave them idle; set"
        " launch.device: auto, or resources.gpus: 0",
    ),
    Contradiction(
        lambda c: c.resources.gpus not in (0, c.launch.processes),
        "resources.gpus: {resources.gpus}, and launch.processes: {launch.processes}; each rank has"
        " one GPU of its own: give both (they count per node) the same number",
    ),
    Contradiction(
        lambda c: c.adversary.strength and c.data.confound is None,
        "adversary.strength: {adversary.strength} needs data.confound, which is not set; name the"
        " column, or set the strength to 0",
    ),
    Contradiction(
        lambda c: c.regression.weight and c.data.target is None,
        "regression.weight: {regression.weight} needs data.target, which is not set; name the"
        " column, or set the weight to 0",
    ),
)

UNUSED = (
    Contradiction(
        lambda c: c.loss.label_noise.rates and not _corrects_noise(c),
        "loss.label_noise.rates: loss.name {loss.name} does not use them; set it to"
        " noise_corrected_bce or noise_corrected_ce, or remove the rates",
    ),
    Contradiction(
        lambda c: c.loss.name != "noise_corrected_ce" and c.loss.label_noise.sink is not None,
        "loss.label_noise.sink: loss.name {loss.name} has none; remove the key, or use"
        " noise_corrected_ce",
    ),
    Contradiction(
        lambda c: c.loss.gamma != LossSection().gamma and c.loss.name != "focal",
        "loss.gamma: {loss.gamma}, and loss.name {loss.name} does not use it; remove it, or use"
        " focal",
    ),
    Contradiction(
        lambda c: c.loss.neg_gamma is not None and c.loss.name != "focal",
        "loss.neg_gamma: loss.name {loss.name} does not use it; remove it, or use focal",
    ),
)
