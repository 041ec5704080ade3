"""The loop: train an epoch, validate, keep the best, save; and go on where a kill left it."""

import logging
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress, TaskID
from torch import nn

from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.data.sampling import Rows, balanced_order, batch_of, epoch_order, num_steps, step_seed
from outlast.distributed import Distributed
from outlast.errors import NonFiniteLossError
from outlast.faults import reach
from outlast.model.build import network_facts
from outlast.model.heads import StudyNetwork
from outlast.model.seeding import seed_everything
from outlast.objective.objective import Objective
from outlast.recipe import recipe, used_roles
from outlast.sections import Config
from outlast.train.apart import refuse_apart
from outlast.train.claim import Claim, Unclaimed
from outlast.train.deadline import Deadline
from outlast.train.finite import all_finite
from outlast.train.history import History, Row, means
from outlast.train.interrupt import Interrupt
from outlast.train.keeper import Keeper
from outlast.train.ledger import Ledger
from outlast.train.lines import best_line, epoch_line
from outlast.train.meter import Meter
from outlast.train.outputs import Outputs
from outlast.train.progress import Bars
from outlast.train.schedule import build_schedule
from outlast.train.selection import Selection, StoppingRule, resolve_metric
from outlast.train.setup import Setup
from outlast.train.single_rows import refuse_single_rows
from outlast.train.state import Position, RunState, Stopwatch
from outlast.train.step import Step
from outlast.train.untracked import Untracked
from outlast.train.validated import Validated
from outlast.train.validation import Validation, Validator

log = logging.getLogger("outlast")

UNSAVED = (
    "model.network: %s changed in training and no state holds it, nor does model_best.pt; if the"
    " numbers depend on it, register it as a buffer or give it in get_extra_state(), or a resumed"
    " run will differ, and test scores and predictions will be those of another network"
)


def _facts(config: Config, data: DataSet, objective: Objective, metric: str) -> dict[str, Any]:
    """Return what shapes the numbers of a run and only data, code and defaults can tell."""
    roles = data.role_content.items()
    return {
        "data.content": data.content,
        **{f"data.content.{role}": digest for role, digest in roles if role in used_roles(config)},
        "loss.name": objective.name,
        **network_facts(config.model.network),
        "training.selection_metric": metric,
    }


class Trainer:
    """Trains one run, on one rank or as one of several."""

    def __init__(
        self,
        *,
        model: nn.Module,
        data: DataSet,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        config: Config,
        folder: Path,
        distributed: Distributed | None = None,
        interrupt: Interrupt | None = None,
        claim: Claim | Unclaimed | None = None,
        deadline: Deadline | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """Put the parts together; no file is read or written yet.

        Args:
            model: The network, or the network with its heads. On the device of ``distributed``.
            data: With splits train and validation (which may be empty).
            objective: Fits the model's logits and the classes.
            optimizer: Over the model's parameters.
            config: The run's config.
            folder: For the outputs and the rolling state. Must exist.
            distributed: The ranks; one by default.
            interrupt: Set when the process was asked to stop.
            claim: On the folder; by default nobody else can be there.
            deadline: The end of the job; none by default.
            ledger: Of this attempt, on rank 0; by default it begins with the training.
        """
        study = model if isinstance(model, StudyNetwork) else StudyNetwork(model)
        self.study, self.model, self.data, self.objective = study, study.network, data, objective
        self.config, self.distributed = config, distributed or Distributed()
        self.num_steps = num_steps(len(data.splits["train"]), config.training.batch_size)
        self.metric = resolve_metric(config.training, len(data.classes))
        self.recipe = recipe(config, _facts(config, data, objective, self.metric))
        self._reader = BatchReader(data, self.distributed.device)
        setup = Setup(study, data, self._reader, objective, config.training, self.distributed)
        self._step = Step(setup, optimizer)
        self._validator = Validator(setup, self.metric)
        self.run = self._new_run(optimizer)
        claim = claim or Unclaimed(folder)
        self._keeper = Keeper(
            self.run,
            self.recipe,
            Outputs(folder, claim, data, objective, config, self.recipe, self.metric),
            self._check,
            folder=folder,
            distributed=self.distributed,
            every_seconds=config.checkpoint.every_seconds,
            interrupt=interrupt,
            claim=claim,
            deadline=deadline,
            ledger=ledger,
        )
        self._stopwatch = Stopwatch()
        self._trained: Row = {}
        self._validation: Validation | None = None
        self._untracked = Untracked(self.model)
        self._validation_seconds, self._epoch_returned = 0.0, False

    def _new_run(self, optimizer: torch.optim.Optimizer) -> RunState:
        """Return a run that nothing has been trained of."""
        lower_is_better = self.metric == "val_loss"
        return RunState(
            model=self.study,
            optimizer=optimizer,
            clipping=self._step.clipping,
            scaler=self._step.scaler,
            schedule=build_schedule(self.config.training, lower_is_better),
            selection=Selection(lower_is_better),
            meter=Meter(self.distributed),
            history=History(**self.study.heads),
            position=Position(),
            best_weights={},
            validated=Validated(
                self.data.splits["validation"],
                self.config.training.batch_size,
                self.distributed,
            ),
        )

    def train(
        self,
        epochs: int,
        early_stopping_patience: int = 10,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Train until ``epochs`` or until the selection metric stands still; write the outputs.

        Args:
            epochs: Epochs in all, those of earlier attempts included.
            early_stopping_patience: Epochs without a better selection metric; 0: never stop early.
            progress: Bars to show, on rank 0.

        Returns:
            The content of history.json (on rank 0; the others lack the attempts).

        Raises:
            InterruptedRunError: Asked to stop; the state is saved.
            NonFiniteLossError: The loss was NaN or infinite; the last good state is on disk.
            RepeatedFailureError: An earlier attempt came to that from the same state.
        """
        try:
            return self._train(epochs, early_stopping_patience, progress)
        except BaseException as error:
            self._keeper.fail(error)
            raise

    def _train(self, epochs: int, patience: int, progress: Progress | None) -> dict[str, Any]:
        run, self._epoch_returned = self.run, False
        rule = StoppingRule(epochs, patience, self._has_validation)
        self._keeper.resume(rule)
        refuse_single_rows(self.study, self._reader, self.data, self.config, self.distributed)
        self._keeper.begin()
        bars = Bars(progress, epochs, self.config.training.batch_size)
        while not (stopped := rule.reason(run.position.epoch, run.selection.epochs_since_best)):
            bars.start_epoch(run.position.epoch, run.position.step, self.num_steps)
            self.train_epoch(progress, bars.batches)
            self.validate()
            self._finish_epoch(epochs)
        bars.start_epoch(run.position.epoch, 0, self.num_steps)
        if stopped == "early_stopping":
            stalled = run.selection.epochs_since_best
            log.info("early stopping: no better %s for %d epochs", self.metric, stalled)
        return self._keeper.finish(stopped)

    def train_epoch(
        self, progress: Progress | None = None, task_id: TaskID | None = None
    ) -> tuple[float, float]:
        """Train the current epoch to its end, from the step where the state left it.

        Returns:
            Mean main loss per row, and accuracy, over the whole epoch and all ranks.

        Raises:
            InterruptedRunError: Asked to stop; the state is saved.
            NonFiniteLossError: The loss was NaN or infinite at some step.
        """
        if self._epoch_returned:
            self._start_next_epoch()
        run, rows = self.run, self.data.splits["train"]
        self._seed(0)  # it may draw there
        run.enter_training()
        for group in run.optimizer.param_groups:
            group["lr"] = run.schedule.rate(run.position.epoch)
        order = self._order()
        if run.position.step < self.num_steps:
            run.validated.clear()  # of other weights: validate() was called before
        self._keeper.poll.expect_other_steps()
        self._stopwatch.start()
        while run.position.step < self.num_steps:
            self._train_step(batch_of(order, run.position.step, self.config.training.batch_size))
            run.position.step += 1
            _advance(progress, task_id)
            self._keeper.at_boundary(self.num_steps)
        self._refuse_non_finite()
        self._trained = means(run.meter.totals(), len(rows))
        self._stopwatch.stop(run.position)
        self._epoch_returned = True
        return self._trained["train_loss"] or 0.0, self._trained["train_acc"] or 0.0

    def _order(self) -> Rows:
        """Return the rows of the current epoch, in its order."""
        training, rows = self.config.training, self.data.splits["train"]
        epoch = self.run.position.epoch
        if training.sampling == "shuffle":
            return epoch_order(rows, training.seed, epoch)
        is_label = training.sampling == "balance_labels"
        category = self.data.label if is_label else self.data.roles.values["noise_group"]
        return balanced_order(rows, category, training.seed, epoch)

    def _train_step(self, rows: Rows) -> None:
        """Take one optimizer step on one global batch."""
        position = self.run.position
        reach("batch")
        self._seed(position.step)
        self._step.take(rows, position, self.strength, self.run.meter)

    @property
    def strength(self) -> float:
        """Of the adversary in the current epoch (Ganin and Lempitsky 2015, with a linear ramp)."""
        section = self.config.adversary
        ramp = (self.run.position.epoch + 1) / max(1, section.anneal_epochs)
        return section.strength * min(1.0, ramp)

    def _seed(self, step: int) -> None:
        """Seed one step on this rank; the steps of validation follow those of training."""
        epoch, rank = self.run.position.epoch, self.distributed.rank
        seed = step_seed(self.config.training.seed, epoch, step, rank)
        seed_everything(seed, self.distributed.device)

    def validate(
        self, progress: Progress | None = None, task_id: TaskID | None = None
    ) -> tuple[float, float, float, float]:
        """Score the whole validation split once, each row on one rank; go on where it was stopped.

        Returns:
            Mean loss, accuracy, AUROC, F1. All 0.0 without a validation split; an undefined
            metric is 0.0 here and None in the history.
        """
        if not self._has_validation:
            return 0.0, 0.0, 0.0, 0.0

        def seed_batch(step: int) -> None:
            self._seed(self.num_steps + step)

        def at_boundary() -> None:
            _advance(progress, task_id)
            reach("validation")
            self._keeper.at_boundary(self.num_steps)

        self._step.gradients.sync_buffers()
        self._keeper.poll.expect_other_steps()
        validated = self.run.validated
        validated.start()
        _advance(progress, task_id, validated.steps)
        with self.run.held():
            result = self._validator.validate(validated, seed_batch, at_boundary)
        self._step.gradients.sync_buffers()  # it may have changed them, on each rank otherwise
        self._validation, self._validation_seconds = result, validated.read()
        validated.clear()
        return result.loss or 0.0, result.accuracy or 0.0, result.auc or 0.0, result.f1 or 0.0

    def _finish_epoch(self, epochs: int) -> None:
        """Book the epoch: history, schedule, best; then the state, and only then the model."""
        reach("epoch")
        run, found, number = self.run, self._validation, self.run.position.epoch + 1
        value = found.by_name(self.metric) if found else None
        train_seconds = run.position.train_seconds
        rate = run.optimizer.param_groups[0]["lr"]
        row: Row = {
            **self._trained,
            "epoch": number,
            "val_loss": found.loss if found else None,
            "val_acc": found.accuracy if found else None,
            "val_auc": found.auc if found else None,
            "val_f1": found.f1 if found else None,
            "val_selection": value,
            "learning_rate": rate,
            "seconds": train_seconds + self._validation_seconds,
            "samples_per_second": len(self.data.splits["train"]) / max(train_seconds, 1e-9),
            "val_reg_loss": found.regression if found else None,
        }
        row = run.history.append(row)
        base = self.config.training.learning_rate
        line = epoch_line(row, epochs, self.metric, base, self.strength, self._has_validation)
        log.info("%s", line)
        run.schedule.observe(value)
        if run.schedule.rate(number) < rate and self.config.training.scheduler.name != "cosine":
            log.info("learning rate: %.3g -> %.3g", rate, run.schedule.rate(number))
        # without validation the last weights are the best weights
        is_best = found is None or run.selection.update(number, value)
        if is_best:
            run.keep_best()
        if is_best and found:
            log.info("%s", best_line(row, self.metric))
        self._start_next_epoch()
        if self.distributed.is_main and (unsaved := self._untracked.news()):
            log.warning(UNSAVED, ", ".join(unsaved))
        self._keeper.save(is_best=is_best, postpone=True)

    def _start_next_epoch(self) -> None:
        self.run.start_next_epoch()
        self._epoch_returned = False

    def _check(self) -> None:
        """Refuse to save what no attempt should go on from. Collective."""
        self._stopwatch.read(self.run.position)
        self._refuse_non_finite()
        refuse_apart(self.model, self.distributed)
        if self.distributed.is_main:
            self.data.check_unchanged()

    def _refuse_non_finite(self) -> None:
        """Stop before a state with NaN in it is saved or scored. Collective."""
        position, training = self.run.position, self.config.training
        found = self.run.meter.first_non_finite()
        if found is None:
            self._refuse_non_finite_weights()
            return
        step, what = found
        order = self._order()
        rows = batch_of(order, step, training.batch_size).tolist()
        raise NonFiniteLossError(
            f"the {what} is not finite at step {step + 1} of epoch {position.epoch + 1}, learning"
            f" rate {self.run.optimizer.param_groups[0]['lr']:g}, rows {rows}: lower"
            " training.learning_rate, set data.normalize, or look at these rows"
        )

    def _refuse_non_finite_weights(self) -> None:
        """Stop where a step of finite size has carried a weight beyond its dtype."""
        trained = [weight for weight in self.study.parameters() if weight.requires_grad]
        # asked of all: one rank alone would leave the others waiting
        if all(self.distributed.gather(all_finite(trained))):
            return
        position = self.run.position
        raise NonFiniteLossError(
            f"a weight is not finite after step {position.step} of epoch {position.epoch + 1};"
            " lower training.learning_rate"
        )

    @property
    def _has_validation(self) -> bool:
        return len(self.data.splits["validation"]) > 0


def _advance(progress: Progress | None, task_id: TaskID | None, steps: int = 1) -> None:
    if progress is not None and task_id is not None:
        progress.advance(task_id, steps)
