"""From `loss:` and the heads' sections to an objective, or an error that names key and fix."""

import numpy as np
import torch

from outlast.data.dataset import DataSet
from outlast.data.roles import UNKNOWN, valid_targets
from outlast.errors import ConfigError
from outlast.objective.losses import class_weights
from outlast.objective.objective import Objective
from outlast.sections import Config

BINARY = frozenset({"bce", "focal", "noise_corrected_bce"})


def build_objective(config: Config, data: DataSet) -> Objective:
    """Choose the losses for these data.

    Raises:
        ConfigError: A loss, weights, rates or a head that do not fit. Nothing is switched silently.
    """
    loss, classes = config.loss, data.classes
    name = loss.name
    if name == "auto":
        name = "bce" if len(classes) == 2 else "cross_entropy"
    problems = [*_misfits(name, config, data), *_target_misfits(config, data)]
    if problems:
        raise ConfigError(problems)
    counts = np.bincount(data.label[data.splits["train"]], minlength=len(classes)).tolist()
    weights = class_weights(loss.class_weights, counts)
    noisy = data.roles.names.get("noise_group", []) if name == "noise_corrected_bce" else classes
    mean, std = _moments(config, data)
    rates = [loss.label_noise.rates.get(key, 0.0) for key in noisy]
    return Objective(
        name=name,
        num_outputs=1 if name in BINARY else len(classes),
        smoothing=loss.label_smoothing,
        gamma=loss.gamma,
        neg_gamma=loss.neg_gamma,
        weights=weights,
        host_weights=None if weights is None else weights.numpy(),
        rates=torch.tensor(rates) if loss.label_noise.rates else None,
        sink=classes.index(loss.label_noise.sink) if loss.label_noise.sink else 0,
        regression_weight=config.regression.weight,
        unit_target=config.regression.range == "unit",
        target_mean=mean,
        target_std=std,
    )


def _moments(config: Config, data: DataSet) -> tuple[float, float]:
    """Return mean and standard deviation of the valid training targets, in float64."""
    target = data.roles.get("target")
    if target is None or config.regression.range == "unit":
        return 0.0, 1.0
    values = target[data.splits["train"]].astype(np.float64)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return 0.0, 1.0
    return float(values.mean()), float(values.std()) or 1.0


def _misfits(name: str, config: Config, data: DataSet) -> list[str]:
    loss, classes = config.loss, data.classes
    shown = _listed(classes)
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
    if noise.sink is not None and noise.sink not in classes:
        problems.append(f"loss.label_noise.sink: {noise.sink} is no class; there are: {shown}")
    if name == "noise_corrected_bce":
        problems += _unknown("group", noise.rates, data.roles.names.get("noise_group", []))
    elif name == "noise_corrected_ce":
        problems += _unknown("class", noise.rates, classes)
    return problems


def _unknown(what: str, rates: dict[str, float], known: list[str]) -> list[str]:
    return [
        f"loss.label_noise.rates.{key}: {rate} is for no {what} of the data; there are:"
        f" {_listed(known)}"
        for key, rate in rates.items()
        if key not in known
    ]


def _target_misfits(config: Config, data: DataSet) -> list[str]:
    target, confound = data.roles.get("target"), data.roles.get("confound")
    train = data.splits["train"]
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


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "none"
