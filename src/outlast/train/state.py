"""What must survive a kill: the live parts of a run, and what the state file holds of them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, get_origin, get_type_hints

import torch
from torch import nn

from outlast.model.copies import copied
from outlast.model.weights import load_weights, transient_buffers
from outlast.recipe import Recipe
from outlast.train.clipping import Clipping
from outlast.train.form import Form
from outlast.train.held import Held, named_parameters
from outlast.train.history import History
from outlast.train.layout import load_optimizer
from outlast.train.meter import Meter
from outlast.train.schedule import Schedule
from outlast.train.selection import Selection
from outlast.train.validated import Validated, problem_of

FORMAT = 6
# one of format 5 has nothing of a validation, and is as good as ever
READABLE_FORMATS = (5, FORMAT)


@dataclass(frozen=True)
class SavedState:
    """The content of model_resume.pt: tensors and plain values only.

    Randomness is not in it: order, dropout and initial weights are pure functions of
    (seed, epoch, step, rank).

    Attributes:
        format: Version of this list.
        recipe: What shapes the numbers; another recipe is another run.
        epoch: Epochs finished, validation included.
        step: Steps done in the current epoch; when all are done, validation comes next.
        train_seconds: Time spent on the steps of the current epoch, over all attempts.
        weights: State dict of the network.
        buffers: Its other buffers, those with ``persistent=False``, by name.
        best_weights: The same at the best epoch; empty before the first one.
        optimizer: State dict.
        clipping: State dict.
        scaler: State dict, of float16; else empty.
        schedule: State dict.
        selection: State dict.
        sums: Running sums of the current epoch, of each rank.
        history: Rows of the finished epochs.
        frozen: Names of the parameters that get no gradient.
        validation: The validation so far, of all ranks; empty outside of one.
        best_buffers: As ``buffers``, at the best epoch.
        modes: Names of the modules that were in another mode than the whole: ``forward`` may
            put a layer into evaluation for the rest of an epoch.
    """

    format: int
    recipe: Recipe
    epoch: int
    step: int
    train_seconds: float
    weights: dict[str, Any]
    buffers: dict[str, torch.Tensor]
    best_weights: dict[str, Any]
    optimizer: dict[str, Any]
    clipping: dict[str, Any]
    scaler: dict[str, Any]
    schedule: dict[str, Any]
    selection: dict[str, Any]
    sums: list[dict[str, Any]]
    history: list[dict[str, Any]]
    frozen: list[str] = field(default_factory=list)
    validation: dict[str, Any] = field(default_factory=dict)
    best_buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    modes: list[str] = field(default_factory=list)

    @property
    def progress(self) -> tuple[int, int]:
        """How far it is: larger is further, of two states of one recipe."""
        return self.epoch, self.step

    @property
    def seconds(self) -> float:
        """Spent on what is in it, over all attempts."""
        finished = sum(row["seconds"] for row in self.history)
        return float(finished + self.train_seconds + self.validation.get("seconds", 0.0))

    def problem(self) -> str | None:
        """Tell what makes this no state, for one that came from a file."""
        for name, hint in get_type_hints(SavedState).items():
            value, kind = getattr(self, name), get_origin(hint) or hint
            if not isinstance(value, (int, float) if kind is float else kind):
                return f"{name} is {type(value).__name__}"
        if min(self.epoch, self.step) < 0:
            return f"epoch {self.epoch}, step {self.step}"
        if not all(isinstance(row, dict) for row in (*self.history, *self.sums)):
            return "a row is no row"
        return problem_of(self.validation)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, without copying tensors."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass
class Position:
    """Where a run is.

    Attributes:
        epoch: Epochs finished.
        step: Steps done in the current epoch.
        train_seconds: Time spent on these steps.
    """

    epoch: int = 0
    step: int = 0
    train_seconds: float = 0.0


class Stopwatch:
    """Adds the time since it was started to a position; does nothing while it is stopped."""

    def __init__(self) -> None:
        """Stopped."""
        self._started: float | None = None

    def start(self) -> None:
        """Start from now."""
        self._started = time.perf_counter()

    def read(self, position: Position) -> None:
        """Book the time until now, and go on."""
        if self._started is not None:
            now = time.perf_counter()
            position.train_seconds += now - self._started
            self._started = now

    def stop(self, position: Position) -> None:
        """Book the time until now, and stop."""
        self.read(position)
        self._started = None


@dataclass
class RunState:
    """The live parts of a run that a state file must bring back, and nothing else."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    clipping: Clipping
    scaler: torch.amp.GradScaler
    schedule: Schedule
    selection: Selection
    meter: Meter
    history: History
    position: Position
    best_weights: dict[str, Any]
    validated: Validated
    best_buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    _is_in_training: bool = False
    _form: Form | None = None
    _held: Held | None = None

    def note_form(self) -> None:
        """Note how the network was built: as the next attempt will find it, too."""
        self._form = Form(self.model)

    def capture(self, recipe: Recipe) -> SavedState:
        """Return what a state file must hold. Collective: every rank must call it.

        Raises:
            ModelError: No state can hold what training has made of the network.
        """
        if self._form is not None:
            self._form.refuse_changed()
        weights, buffers, held = self.model.state_dict(), transient_buffers(self.model), self._held
        if held is not None:
            held.put_into(weights)
            buffers = held.buffers
        return SavedState(
            format=FORMAT,
            recipe=recipe,
            epoch=self.position.epoch,
            step=self.position.step,
            train_seconds=self.position.train_seconds,
            weights=weights,
            buffers=buffers,
            best_weights=self.best_weights,
            optimizer=self.optimizer.state_dict(),
            clipping=self.clipping.state_dict(),
            scaler=self.scaler.state_dict(),
            schedule=self.schedule.state_dict(),
            selection=self.selection.state_dict(),
            sums=self.meter.state(),
            history=self.history.rows,
            frozen=[name for name, one in named_parameters(self.model) if not one.requires_grad],
            validation=self.validated.state({} if held is None else held.changes()),
            best_buffers=self.best_buffers,
            # within an epoch of training only: validation and the next epoch set them anew
            modes=[
                name
                for name, module in self.model.named_modules()
                if self.model.training and self.position.step and not module.training
            ],
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Capture, within, what the network holds beside its parameters as it is now.

        For a validation: the next attempt goes on with its next batch, or begins it anew, and what
        it has counted would be counted twice.

        Raises:
            ModelError: It has changed a parameter meanwhile.
        """
        held = self._held = Held(self.model)
        if self.validated.network:
            held.load_changes(self.validated.network)
            self.validated.network = {}
        try:
            yield
        finally:
            self._held = None
        held.refuse_moved()

    def restore(self, saved: SavedState) -> None:
        """Go on from ``saved``. Strict: a missing or surplus weight is an error."""
        self.validated.load(saved.validation)
        self._is_in_training = saved.step > 0
        if self._is_in_training:
            self._enter_again(saved.modes)
        load_weights(self.model, saved.weights, saved.buffers)
        frozen = set(saved.frozen)
        for name, parameter in named_parameters(self.model):
            parameter.requires_grad_(name not in frozen)
        load_optimizer(self.optimizer, saved.optimizer)
        self.clipping.load_state_dict(saved.clipping)
        if saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        self.schedule.load_state_dict(saved.schedule)
        self.selection.load_state_dict(saved.selection)
        self.meter.load(saved.sums)
        self.history.rows = saved.history
        self.position = Position(saved.epoch, saved.step, saved.train_seconds)
        self.best_weights, self.best_buffers = saved.best_weights, saved.best_buffers

    def _enter_again(self, modes: list[str]) -> None:
        """Put the network into training or validation, as it was, before its numbers are loaded.

        It may count, draw or merge weights when its mode changes; the numbers are those after that.
        """
        self.model.train()
        modules = dict(self.model.named_modules())
        for name in modules.keys() & modes:
            modules[name].training = not self.model.training
        if self.validated.steps:
            self.model.eval()

    def enter_training(self) -> None:
        """Put the network into training for a new epoch; for the rest of a saved one it is."""
        if not self._is_in_training:
            self.model.train()
        self._is_in_training = False

    @property
    def seconds(self) -> float:
        """Spent on what is done, over all attempts."""
        finished = float(sum(self.history.column("seconds")))
        return finished + self.position.train_seconds + self.validated.seconds

    def keep_best(self) -> None:
        """Remember the weights as they are now, and the buffers that are no part of them."""
        now = self.model.state_dict(), transient_buffers(self.model)
        self.best_weights, self.best_buffers = copied(now)

    def start_next_epoch(self) -> None:
        """Move on; the sums of the epoch before are gone."""
        self.position = Position(self.position.epoch + 1)
        self.meter.start_epoch()
        self.validated.clear()
