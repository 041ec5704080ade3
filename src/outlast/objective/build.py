"""From `loss:` and the heads' sections to an objective, or an error that names key and fix."""

import numpy as np
import torch

from outlast.data.dataset import DataSet
from outlast.errors import ConfigError
from outlast.objective.losses import class_weights
from outlast.objective.misfits import BINARY, misfits, resolve_loss
from outlast.objective.objective import Objective
from outlast.sections import Config, LabelNoiseSection


def build_objective(config: Config, data: DataSet) -> Objective:
    """Choose the losses for these data.

    Raises:
        ConfigError: A loss, weights, rates or a head that do not fit. Nothing is switched silently.
    """
    loss, classes = config.loss, data.classes
    if problems := misfits(config, data.labels):
        raise ConfigError(problems)
    name = resolve_loss(loss.name, len(classes))
    counts = np.bincount(data.label[data.splits["train"]], minlength=len(classes)).tolist()
    weights = class_weights(loss.class_weights, counts)
    mean, std = _moments(config, data)
    return Objective(
        name=name,
        num_outputs=1 if name in BINARY else len(classes),
        smoothing=loss.label_smoothing,
        gamma=loss.gamma,
        neg_gamma=loss.neg_gamma,
        weights=weights,
        host_weights=None if weights is None else weights.numpy(),
        rates=_rates(name, loss.label_noise, data),
        sink=classes.index(str(loss.label_noise.sink)) if name == "noise_corrected_ce" else 0,
        regression_weight=config.regression.weight,
        unit_target=config.regression.range == "unit",
        target_mean=mean,
        target_std=std,
    )


def _rates(name: str, noise: LabelNoiseSection, data: DataSet) -> torch.Tensor | None:
    """Return the rate of each noise group or class by number, 0 where none is given."""
    if not name.startswith("noise_corrected"):
        return None
    keys = data.roles.names["noise_group"] if name in BINARY else data.classes
    rates = [noise.rates.get(key, 0.0) for key in keys]
    return torch.tensor(rates, dtype=torch.float64)  # the losses take their logarithm


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
