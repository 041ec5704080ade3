"""What keeps a run over its attempts: finds the state, saves it in time, tells how it goes."""

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast.distributed import Distributed
from outlast.errors import (
    InterruptedRunError,
    LostClaimError,
    OutlastError,
    RepeatedFailureError,
)
from outlast.recipe import Recipe
from outlast.train.checkpoint import Checkpoints
from outlast.train.claim import Claim, Unclaimed
from outlast.train.deadline import Deadline
from outlast.train.failure import Failures
from outlast.train.interrupt import Interrupt
from outlast.train.ledger import Ledger
from outlast.train.outputs import Outputs
from outlast.train.poll import Poll
from outlast.train.resume import resume
from outlast.train.selection import StoppingRule
from outlast.train.state import RunState

log = logging.getLogger("outlast")


class Keeper:
    """The attempt as the files of the run folder see it. Every rank has one, rank 0 writes."""

    def __init__(
        self,
        run: RunState,
        recipe: Recipe,
        outputs: Outputs,
        check: Callable[[], None],
        *,
        folder: Path,
        distributed: Distributed,
        claim: Claim | Unclaimed,
        every_seconds: float,
        interrupt: Interrupt | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Put the parts together; nothing is read or written yet.

        Args:
            run: What a state holds.
            recipe: Of the run.
            outputs: The declared ones.
            check: Raises where the run is in no state to be saved. Collective.
            folder: Of the run.
            distributed: The ranks.
            claim: On the folder.
            every_seconds: Between periodic saves.
            interrupt: This rank's flag.
            deadline: The end of the job; none by default.
        """
        self._run, self._recipe, self._outputs, self._check = run, recipe, outputs, check
        self._folder, self._distributed = folder, distributed
        self._claim = claim
        self._checkpoints = Checkpoints(folder, self._claim)
        self._failures = Failures(folder, self._claim)
        interrupt = interrupt or Interrupt()
        self.poll = Poll(distributed, interrupt, every_seconds, deadline)
        self._started = interrupt.started
        self._ledger: Ledger | None = None
        self._saved = (0, 0)

    def resume(self, rule: StoppingRule) -> None:
        """Go on from the state in the folder, if there is one. Collective."""
        if self._distributed.is_main:
            self._ledger = Ledger(self._folder, self._claim.staging, self._started)
        resume(self._run, self._checkpoints, self._recipe, rule, self._distributed)
        self._saved = self._run.position.epoch, self._run.position.step

    def begin(self) -> None:
        """Note where the attempt begins. Collective.

        Raises:
            RepeatedFailureError: An earlier attempt failed from this very state.
        """
        if self._ledger:
            self._ledger.begin(*self._saved, self._run.seconds)
        why = self._failures.why_refused(self._recipe, self._saved) if self._ledger else None
        if why := self._distributed.broadcast(why):
            raise RepeatedFailureError(why)

    def at_boundary(self, num_steps: int) -> None:
        """Save or stop here, if it is time. Every rank passes the same boundaries.

        Raises:
            InterruptedRunError: Asked to stop, or the walltime is near.
        """
        position = self._run.position
        if self._ledger:
            self._ledger.update(position.epoch, position.step)
        answer = self.poll.ask()
        saved = self.save() if answer.save else None
        if answer.stop:
            kept = "the state is saved" if saved else "an older state is kept"
            message = (
                f"{answer.stop}: interrupted in epoch {position.epoch + 1} after step"
                f" {position.step} of {num_steps}: {kept}, start the run again to go on"
            )
            if self._ledger:
                self._ledger.end("interrupted", message)
            self._distributed.barrier()  # torchrun kills the others as soon as one has left
            raise InterruptedRunError(message)

    def save(self) -> bool:
        """Write the rolling state; tell (rank 0 knows) whether that worked. Collective.

        A full disk costs a warning and an interval, not the run.
        """
        started = time.monotonic()
        self._check()
        state, written = self._run.capture(self._recipe), True
        if self._distributed.is_main:
            try:
                self._checkpoints.save(state)
                self._saved = state.progress
                if self._ledger:
                    self._ledger.keep(self._run.seconds)
            except OSError as error:
                written = False
                log.warning("state not saved (%s): the files are as before, going on", error)
        self.poll.note_save(time.monotonic() - started)
        return written

    def show_best(self) -> None:
        """Write the model for people who look; the declared output comes last."""
        if self._distributed.is_main:
            with contextlib.suppress(OSError):  # a full disk: the state has warned of it
                self._outputs.write_model(self._run)

    def fail(self, error: BaseException) -> None:
        """Note why the attempt ends, unless it has been closed with a better reason."""
        if self._ledger:
            with contextlib.suppress(OSError, LostClaimError):  # the error itself is the news
                self._failures.note(error, self._recipe, self._saved)
            is_ours = isinstance(error, OutlastError)
            self._ledger.end("failed", f"{'' if is_ours else f'{type(error).__name__}: '}{error}")

    def finish(self, stopped: str) -> dict[str, Any]:
        """Write the declared outputs; all ranks leave together. Collective.

        Returns:
            The content of history.json (on rank 0; the others lack the attempts).
        """
        attempts, seconds = 0, 0.0
        if self._ledger:
            self._ledger.update(self._run.position.epoch, self._run.position.step)
            attempts, seconds = len(self._ledger.attempts) + 1, self._ledger.lost_seconds
        content = self._outputs.history(self._run, stopped, attempts, seconds)
        if self._ledger:
            self._outputs.write_model(self._run)
            self._outputs.write_history(content)
            self._failures.clear()
            self._ledger.end("completed", stopped)
        self._distributed.barrier()
        return content
