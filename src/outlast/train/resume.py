"""Going on where a kill left a run: rank 0 decides from the files, and tells the others."""

import logging
from dataclasses import replace

from torch import nn

from outlast.distributed import Distributed
from outlast.errors import CheckpointError, ModelError
from outlast.model.copies import copied
from outlast.model.weights import load_weights
from outlast.recipe import Recipe
from outlast.train.checkpoint import Checkpoints
from outlast.train.selection import StoppingRule
from outlast.train.state import RunState, SavedState

log = logging.getLogger("outlast")


def resume(
    run: RunState,
    checkpoints: Checkpoints,
    recipe: Recipe,
    rule: StoppingRule,
    distributed: Distributed,
) -> None:
    """Bring ``run`` to the last saved state of its recipe; leave it as it is when there is none.

    Ranks never look at the files themselves: on a network file system one may see what another
    does not, and they would train apart in silence.
    """
    run.note_form()
    saved = _find(run, checkpoints, recipe, rule) if distributed.is_main else None
    best = (saved.best_weights, saved.best_buffers) if saved else ({}, {})
    # the other ranks never write a model: spare them the best weights
    spared = replace(saved, best_weights={}, best_buffers={}) if saved else None
    saved = distributed.broadcast(spared)
    if saved is None:
        # equal by their seed already, unless the network draws from a source that we do not seed
        _load_own(run.model, distributed)
        return
    try:
        run.restore(replace(saved, best_weights=best[0], best_buffers=best[1]))
    except Exception as error:
        # its code is the same, by the recipe: what it builds depends on something else
        raise CheckpointError(
            "model.network: it was built in another form than the one whose state was saved"
            f" ({' '.join(str(error).split())}); build it from model.options alone, and remove"
            f" {checkpoints.current} to start over"
        ) from error


def _load_own(model: nn.Module, distributed: Distributed) -> None:
    """Give every rank the state of rank 0, and find out that it can be loaded at all.

    Raises:
        ModelError: It cannot: a kill would be the end of the run.
    """
    state = model.state_dict()
    if distributed.world_size > 1:  # a copy: what two modules share would become two on its way
        state = distributed.broadcast(copied(state) if distributed.is_main else {})
    try:
        load_weights(model, state)
    except Exception as error:  # whatever set_extra_state() or a hook may raise
        raise ModelError(
            "model.network: what its state_dict() gives cannot be loaded into it again"
            f" ({type(error).__name__}: {' '.join(str(error).split())}); a get_extra_state() needs"
            " a set_extra_state() that takes what it gives, and no hook may leave out a parameter"
            " or buffer"
        ) from error


def _find(
    run: RunState, checkpoints: Checkpoints, recipe: Recipe, rule: StoppingRule
) -> SavedState | None:
    def refusal(state: SavedState) -> str | None:
        values = [row["val_selection"] for row in state.history]
        if rule.allows(values, run.selection.lower_is_better):
            return None
        return (
            f"training.epochs ({rule.epochs}) or training.early_stopping_patience"
            f" ({rule.patience}) ends before the {state.epoch} epochs trained so far"
        )

    saved, notes = checkpoints.load(recipe, refusal)
    for note in notes:
        log.info("%s", note)
    if saved is None:
        return None
    if rule.reason(saved.epoch, saved.selection["epochs_since_best"]):
        log.info("already complete: %d epochs; writing the outputs from the state", saved.epoch)
    else:
        place = f"epoch {saved.epoch + 1}, after step {saved.step}"
        if run.validated.can_load(saved.validation):
            place += f" and batch {saved.validation['steps']} of validation"
        elif saved.validation:
            place += "; validation begins anew, on another number of ranks"
        log.info("resumed: %s", place)
    return saved
