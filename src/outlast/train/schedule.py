"""The learning rate of each epoch. `none` and `cosine` are pure functions; plateau has a state."""

import math
from typing import Any, Protocol

from outlast.sections import TrainingSection
from outlast.train.selection import is_better

COSINE_FLOOR = 1e-6


class Schedule(Protocol):
    """Gives a rate per epoch, and may watch the selection metric."""

    def rate(self, epoch: int) -> float:
        """Return the learning rate of ``epoch`` (from 0)."""
        ...

    def observe(self, value: float | None) -> None:
        """Take note of the selection metric after an epoch. None: undefined or no validation."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for the state file."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        ...


class _Stateless:
    def observe(self, value: float | None) -> None:
        """Nothing to note."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class Constant(_Stateless):
    """The base rate, always."""

    def __init__(self, base: float) -> None:
        """Keep the base rate."""
        self._base = base

    def rate(self, epoch: int) -> float:
        """Return the base rate."""
        return self._base


class Cosine(_Stateless):
    """Half a cosine from the base rate towards 1e-6 of it (Loshchilov and Hutter 2017, eq. 5)."""

    def __init__(self, base: float, epochs: int, start: int = 0) -> None:
        """Keep base rate, length, and the epoch at which it starts (after a warm-up)."""
        self._base, self._epochs, self._start = base, max(1, epochs - start), start

    def rate(self, epoch: int) -> float:
        """Return floor + (base - floor) (1 + cos(pi progress)) / 2, progress from 0 to 1."""
        floor = COSINE_FLOOR * self._base
        progress = min(max(epoch - self._start, 0) / self._epochs, 1.0)
        return floor + (self._base - floor) * (1 + math.cos(math.pi * progress)) / 2


class ReduceOnPlateau:
    """Multiply the rate when the selection metric has stood still.

    Better means strictly better, without a threshold: a flat metric does fire. An undefined
    value is no improvement.
    """

    def __init__(self, base: float, *, factor: float, patience: int, lower_is_better: bool) -> None:
        """Keep the settings; no value seen yet."""
        self._base, self._factor, self._patience = base, factor, patience
        self._lower_is_better = lower_is_better
        self._best: float | None = None
        self._bad_epochs = self._reductions = 0

    def rate(self, epoch: int) -> float:
        """Return base x factor^reductions so far."""
        return self._base * self._factor**self._reductions

    def observe(self, value: float | None) -> None:
        """Count an epoch without improvement; reduce when there are more than ``patience``."""
        if is_better(value, self._best, self._lower_is_better):
            self._best, self._bad_epochs = value, 0
            return
        self._bad_epochs += 1
        if self._bad_epochs > self._patience:
            self._reductions, self._bad_epochs = self._reductions + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the best value."""
        return {
            "best": self._best,
            "bad_epochs": self._bad_epochs,
            "reductions": self._reductions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._best, self._bad_epochs = state["best"], state["bad_epochs"]
        self._reductions = state["reductions"]


class Warmup:
    """A linear ramp to the base rate before another schedule (Goyal et al. 2017, section 2.2).

    What is observed on the ramp does not count: a plateau can only be one of the base rate.
    """

    def __init__(self, schedule: Schedule, base: float, epochs: int) -> None:
        """Keep the schedule, and the length of the ramp."""
        self._schedule, self._base, self._epochs = schedule, base, epochs
        self._observed = 0

    def rate(self, epoch: int) -> float:
        """Return base x (epoch + 1) / epochs on the ramp, then the rate of the schedule."""
        if epoch < self._epochs:
            return self._base * (epoch + 1) / self._epochs
        return self._schedule.rate(epoch)

    def observe(self, value: float | None) -> None:
        """Hand it on, behind the ramp."""
        self._observed += 1
        if self._observed > self._epochs:
            self._schedule.observe(value)

    def state_dict(self) -> dict[str, Any]:
        """Return how far it is, and the state of the schedule."""
        return {"observed": self._observed, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._observed = state["observed"]
        self._schedule.load_state_dict(state["schedule"])


def build_schedule(section: TrainingSection, lower_is_better: bool) -> Schedule:
    """Choose the schedule that the config names, behind its warm-up."""
    schedule = _build(section, lower_is_better)
    if not section.warmup_epochs:
        return schedule
    return Warmup(schedule, section.learning_rate, section.warmup_epochs)


def _build(section: TrainingSection, lower_is_better: bool) -> Schedule:
    scheduler, base = section.scheduler, section.learning_rate
    if scheduler.name == "cosine":
        return Cosine(base, section.epochs, section.warmup_epochs)
    if scheduler.name == "reduce_on_plateau":
        return ReduceOnPlateau(
            base,
            factor=scheduler.factor,
            patience=scheduler.patience,
            lower_is_better=lower_is_better,
        )
    return Constant(base)
