"""Losses, heads and metrics that do not fit the data they are meant for: a line with key and fix.

No torch here: Snakemake asks before it submits a job.
"""

from outlast.data.labels import Labels
from outlast.data.roles import UNKNOWN, valid_targets
from outlast.errors import listed
from outlast.metric_names import operating_point
from outlast.sections import Config

BINARY = frozenset({"bce", "focal", "noise_corrected_bce"})


def resolve_loss(name: str, num_classes: int) -> str:
    """Return the loss that `auto` stands for, any other as it is."""
    if name != "auto":
        return name
    return "bce" if num_classes == 2 else "cross_entropy"


def misfits(config: Config, labels: Labels) -> list[str]:
    """Return a line for each setting that does not fit the data. Nothing is switched silently."""
    return [
        *_metric_misfits(config.training.selection_metric, len(labels.classes)),
        *_loss_misfits(config, labels),
        *_head_misfits(config, labels),
    ]


def _metric_misfits(metric: str, num_classes: int) -> list[str]:
    if operating_point(metric) is None or num_classes == 2:
        return []
    return [
        f"training.selection_metric: {metric} is for 2 classes, and the data have {num_classes};"
        " use val_f1, val_auc, val_acc, val_loss or auto"
    ]


def _loss_misfits(config: Config, labels: Labels) -> list[str]:
    loss, classes = config.loss, labels.classes
    name, shown = resolve_loss(loss.name, len(classes)), listed(classes)
    problems = []
    if name in BINARY and len(classes) != 2:
        problems.append(
            f"loss.name: {name} is for 2 classes, and the data have {len(classes)} ({shown});"
            " use cross_entropy or auto"
        )
    weights = loss.class_weights
    if isinstance(weights, list) and len(weights) != len(classes):
        problems.append(
            f"loss.class_weights: {weights} has {len(weights)} weights, and the data have"
            f" {len(classes)} classes ({shown}); give one for each, in this order"
        )
    noise = loss.label_noise
    if name == "noise_corrected_ce" and noise.sink not in classes:
        problems.append(f"loss.label_noise.sink: {noise.sink} is no class; there are: {shown}")
    if name == "noise_corrected_bce":
        problems += _unknown("group", noise.rates, labels.roles.names.get("noise_group", []))
    elif name == "noise_corrected_ce":
        problems += _unknown("class", noise.rates, classes)
    return problems


def _unknown(what: str, rates: dict[str, float], known: list[str]) -> list[str]:
    return [
        f"loss.label_noise.rates.{key}: {rate} is for no {what} of the data; there are:"
        f" {listed(known)}"
        for key, rate in rates.items()
        if key not in known
    ]


def _head_misfits(config: Config, labels: Labels) -> list[str]:
    target, confound = labels.roles.get("target"), labels.roles.get("confound")
    train = labels.splits["train"]
    if config.adversary.strength and confound is not None and (confound[train] == UNKNOWN).all():
        return ["data.confound: unknown in every training row; set adversary.strength to 0"]
    if not config.regression.weight or target is None:
        return []
    if not valid_targets(target[train], config.regression.range == "unit").any():
        return ["data.target: missing in every training row; set regression.weight to 0"]
    if config.regression.range == "unit" and (target > 1).any():
        row = int((target > 1).argmax())
        return [
            f"regression.range: unit, and the target is {target[row]:g} in row {row} (from 0);"
            " scale it to [0, 1], or use real"
        ]
    return []
