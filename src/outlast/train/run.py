"""One attempt of one run: build the parts from the config, train, and return an exit code."""

import contextlib
import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import nn

from outlast.data.augment import refuse_idle_augment
from outlast.data.dataset import DataSet
from outlast.data.store import check_prepared, open_data
from outlast.distributed import Distributed, process_group
from outlast.errors import (
    ConfigError,
    InterruptedRunError,
    LostRankError,
    ModelError,
    NonFiniteLossError,
    OutlastError,
    PlaceError,
)
from outlast.faults import reach
from outlast.model.build import build_network
from outlast.model.heads import Adversary, Regression, StudyNetwork, count_features
from outlast.model.seeding import seed_everything
from outlast.objective.build import build_objective
from outlast.objective.objective import Objective
from outlast.processes import EXIT_INTERRUPTED
from outlast.recipe import fingerprint
from outlast.sections import Config, TrainingSection
from outlast.train.claim import Claim
from outlast.train.deadline import Deadline
from outlast.train.interrupt import Interrupt
from outlast.train.layout import form_of, refuse_scattered, refuse_unsaved
from outlast.train.ledger import Ledger
from outlast.train.progress import reporting
from outlast.train.trainer import Trainer

log = logging.getLogger("outlast")

# between two looks at the claim of another attempt
WAIT_S = 0.5


def train_run(
    config: Config,
    data_folder: Path,
    folder: Path,
    interrupt: Interrupt,
    world_size: int | None = None,
) -> int:
    """Train one run, or go on with it.

    Args:
        config: Of this run, without a sweep.
        data_folder: What ``prepare`` made.
        folder: Of the run; created if it is missing.
        interrupt: Installed already, so that a signal during the imports is not lost.
        world_size: Number of ranks that there must be, if it was asked for.

    Returns:
        Exit code: 0 finished, 75 interrupted and saved, 1 failed. All but 0 have said why.
    """
    torch.set_num_threads(config.launch.threads)
    is_main = os.environ.get("RANK", "0") == "0"
    folder.mkdir(parents=True, exist_ok=True)
    with reporting(folder, is_main) as progress:
        try:
            with process_group(config.launch.device, world_size) as ranks:
                _train_claimed(config, data_folder, folder, interrupt, ranks, progress)
        except InterruptedRunError as error:
            if is_main:
                log.warning("%s", error)
            return EXIT_INTERRUPTED
        except OutlastError as error:
            # rank 0 may be the lost one, or know nothing of it
            if is_main or isinstance(error, LostRankError | PlaceError):
                log.error("error: %s", error)
            return 1
        except OSError as error:  # the outputs, at the end: they need the disk
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "make room" if is_full else "correct that"
            line = "error: %s; %s, and start the run again: what is saved in %s is kept"
            log.error(line, error, advice, folder)
            return 1
    return 0


def _train_claimed(
    config: Config,
    data_folder: Path,
    folder: Path,
    interrupt: Interrupt,
    ranks: Distributed,
    progress: Progress | None,
) -> None:
    """Train as the only one in the folder."""
    claim = Claim(folder)
    deadline = Deadline.of_this_job() if ranks.is_main else Deadline()
    _acquire(claim, interrupt, deadline, ranks)
    ledger = None
    try:
        ledger = Ledger(folder, claim, interrupt.started) if ranks.is_main else None
        trainer = _build_everywhere(config, data_folder, claim, interrupt, deadline, ranks, ledger)
        training = config.training
        trainer.train(training.epochs, training.early_stopping_patience, progress)
        reach("leave")
    except BaseException as error:
        if ledger:
            ledger.fail(error)
        if isinstance(error, NonFiniteLossError):
            # All ranks have it. torchrun ends the others soon after one has left, and rank 0 may
            # have to finish a write first.
            with contextlib.suppress(LostRankError):
                ranks.barrier()
        raise
    finally:
        if ranks.is_main:
            claim.release()


def _acquire(claim: Claim, interrupt: Interrupt, deadline: Deadline, ranks: Distributed) -> None:
    """Wait until the folder is free. Rank 0 claims it for all, and knows the deadline.

    Raises:
        InterruptedRunError: Asked to stop while waiting, or the walltime is near.
    """
    told = None
    # each round is a collective: a rank that only waited for rank 0 would give up after a while
    while owner := ranks.broadcast(claim.try_acquire() if ranks.is_main else None):
        why = ranks.gather(_why_to_leave(interrupt, deadline))
        if any(why):
            first = why[ranks.rank] or next(filter(None, why))
            raise InterruptedRunError(f"{first}: interrupted while waiting for {owner}")
        if owner != told:
            log.info("%s trains this run: waiting until it ends or gives no sign of life", owner)
            told = owner
        time.sleep(WAIT_S)


def _why_to_leave(interrupt: Interrupt, deadline: Deadline) -> str | None:
    if interrupt.received:
        return interrupt.received.name
    return "the walltime is near" if deadline.is_too_near_to_wait() else None


def _build_everywhere(
    config: Config,
    data_folder: Path,
    claim: Claim,
    interrupt: Interrupt,
    deadline: Deadline,
    ranks: Distributed,
    ledger: Ledger | None,
) -> Trainer:
    """Build the trainer on every rank, or raise the same error on every rank."""
    trainer, error = None, None
    try:
        trainer = _build(config, data_folder, claim, interrupt, deadline, ranks, ledger)
    except OutlastError as problem:
        error = problem
    # a rank that fails alone would leave the others waiting in their first collective
    first = next((problem for problem in ranks.gather(error) if problem is not None), None)
    if first is not None:
        raise first
    if len(set(ranks.gather(fingerprint(trainer.recipe) if trainer else ""))) > 1:
        raise ModelError(
            "the ranks have read different data or network code, changed while they started; start"
            " the run again"
        )
    assert trainer is not None, "no rank has failed"
    if len(set(ranks.gather(form_of(trainer.study)))) > 1:
        raise ModelError(
            "model.network: the ranks have built it in different forms (its parameters come in"
            " another order, or have other shapes), and would add up the gradients of different"
            " layers; build it from model.options alone, and never in the order of a set"
        )
    return trainer


def _build(
    config: Config,
    data_folder: Path,
    claim: Claim,
    interrupt: Interrupt,
    deadline: Deadline,
    ranks: Distributed,
    ledger: Ledger | None,
) -> Trainer:
    check_prepared(data_folder, config.data)
    data = open_data(data_folder)
    objective = build_objective(config, data)
    if config.training.precision == "float16" and ranks.device.type == "cpu":
        raise ConfigError(
            ["training.precision: float16 needs a GPU, and there is none; use bfloat16"]
        )
    seed_everything(config.training.seed, ranks.device)
    model: nn.Module = build_study(config, data, objective)
    if ranks.device.type == "cuda" and ranks.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(ranks.device)
    return Trainer(
        model=model,
        data=data,
        objective=objective,
        optimizer=build_optimizer(config.training, model),
        config=config,
        folder=claim.folder,
        distributed=ranks,
        interrupt=interrupt,
        claim=claim,
        deadline=deadline,
        ledger=ledger,
    )


def build_study(config: Config, data: DataSet, objective: Objective) -> StudyNetwork:
    """Build what a run trains, the network with its heads, on the CPU.

    Raises:
        ModelError: It cannot be built, does not fit the objective, or has nothing to train.
        ConfigError: An augmentation that these inputs cannot have.
    """
    refuse_idle_augment(config.training.augment, data.row_shapes)
    network = build_network(config.model, data.row_shapes, objective.num_outputs)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ModelError(
            f"model.network: {config.model.network} has no parameter to train; give it one, or"
            " leave requires_grad as it is"
        )
    refuse_scattered(network)
    refuse_unsaved(network)
    return add_heads(network, config, data, objective)


def add_heads(
    network: nn.Module, config: Config, data: DataSet, objective: Objective
) -> StudyNetwork:
    """Put the heads that the config asks for on a network.

    Their initial weights are drawn after the network's, which no head may change.

    Raises:
        ModelError: The network has no layer whose input they could read.
    """
    has_adversary, has_regression = config.adversary.strength > 0, config.regression.weight > 0
    if not has_adversary and not has_regression:
        return StudyNetwork(network)
    rows = [torch.zeros(2, *shape) for shape in data.row_shapes.values()]
    features = count_features(network, config.model.head, rows, must_learn=has_adversary)
    adversary = regression = None
    if has_adversary:
        adversary = Adversary(features, len(data.roles.names["confound"]))
    if has_regression:
        unit = objective.unit_target
        regression = Regression(features, unit, objective.target_mean, objective.target_std)
    return StudyNetwork(network, config.model.head, adversary, regression)


def build_optimizer(section: TrainingSection, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer that the config names, in its fused form where torch has one."""
    # with their names, which the state keeps: moments go by position
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    keywords: dict[str, Any] = {
        "lr": section.learning_rate,
        "weight_decay": section.weight_decay,
        "fused": all(_can_be_fused(weight, section.optimizer) for _, weight in named),
    }
    if section.optimizer == "sgd":
        return torch.optim.SGD(named, momentum=section.momentum, **keywords)
    kind = torch.optim.AdamW if section.optimizer == "adamw" else torch.optim.Adam
    return kind(named, **keywords)


def _can_be_fused(weight: torch.Tensor, optimizer: str) -> bool:
    """Tell whether torch has a fused form for it that gives the right numbers.

    SGD on a CPU (torch 2.13) mixes up the numbers of a weight in half precision, from the 16th on,
    and goes on from momenta that nobody has set.
    """
    if optimizer == "sgd" and weight.device.type == "cpu":
        return weight.dtype in (torch.float32, torch.float64)
    return weight.is_floating_point()
