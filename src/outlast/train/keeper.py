"""What keeps a run over its attempts: finds the state, saves it in time, tells how it goes."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from outlast.distributed import Distributed
from outlast.errors import (
    InterruptedRunError,
    LostClaimError,
    ModelError,
    OutlastError,
    RepeatedFailureError,
)
from outlast.faults import reach
from outlast.files import UnconfirmedError
from outlast.recipe import Recipe, fingerprint
from outlast.train.checkpoint import Checkpoints
from outlast.train.claim import Claim, Unclaimed
from outlast.train.deadline import LEAVE_S, Deadline
from outlast.train.failure import Failures
from outlast.train.interrupt import Interrupt
from outlast.train.ledger import Ledger
from outlast.train.outputs import Outputs
from outlast.train.poll import Poll
from outlast.train.readable import refuse_unreadable
from outlast.train.resume import resume
from outlast.train.selection import StoppingRule
from outlast.train.state import RunState
from outlast.train.writer import Writer

log = logging.getLogger("outlast")

UNCONFIRMED = "state written, but not confirmed by the disk (%s): a power cut may undo it, going on"


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
        ledger: Ledger | None = None,
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
            every_seconds: Between periodic saves; 0: at every boundary, and waited for.
            interrupt: This rank's flag.
            deadline: The end of the job; none by default.
            ledger: Of this attempt, on rank 0; by default it begins at :meth:`resume`.
        """
        self._run, self._recipe, self._outputs, self._check = run, recipe, outputs, check
        self._folder, self._distributed = folder, distributed
        self._claim = claim
        self._checkpoints = Checkpoints(folder, self._claim)
        self._failures = Failures(folder, self._claim, distributed)
        interrupt = interrupt or Interrupt()
        self._writer, self._waits = Writer(), every_seconds == 0
        self.poll = Poll(
            distributed, interrupt, every_seconds, deadline, lambda: self._writer.is_busy
        )
        self._deadline = deadline or Deadline()
        self._started, self._pid = interrupt.started, os.getpid()
        self._ledger = ledger
        self._saved = (0, 0)
        self._is_owed = self._is_best_owed = False
        self._is_complete = self._has_begun = self._is_short_told = False
        self._boundaries = 0

    def resume(self, rule: StoppingRule) -> None:
        """Go on from the state in the folder, if there is one. Collective."""
        self._failures.rule = rule
        if self._distributed.is_main and self._ledger is None:
            self._ledger = Ledger(self._folder, self._claim, self._started)
        resume(self._run, self._checkpoints, self._recipe, rule, self._distributed)
        self._saved = self._run.position.epoch, self._run.position.step
        done, stalled = self._run.position.epoch, self._run.selection.epochs_since_best
        self._is_complete = rule.reason(done, stalled) is not None
        reach("resume")

    def begin(self) -> None:
        """Note where the attempt begins. Collective.

        Raises:
            RepeatedFailureError: An earlier attempt failed from this very state.
            ModelError: A state of this network could not be read again.
        """
        if self._ledger:
            name = fingerprint(self._recipe)
            self._ledger.begin(*self._saved, self._run.seconds, name)
        why = None
        if self._ledger and not self._is_complete:
            why = self._failures.why_refused(self._recipe, self._saved)
        if why := self._distributed.broadcast(why):
            raise RepeatedFailureError(why)
        if not self._is_complete:
            self._refuse_unreadable()
            if (left := self._deadline.seconds_left) is not None:
                self._tell_short(left < LEAVE_S)
        self._has_begun = True

    def _refuse_unreadable(self) -> None:
        state, problem = self._run.capture(self._recipe), None
        if self._distributed.is_main:
            try:
                refuse_unreadable(state.as_dict())
            except ModelError as error:
                problem = str(error)
        if problem := self._distributed.broadcast(problem):
            raise ModelError(problem)

    def at_boundary(self, num_steps: int) -> None:
        """Save or stop here, if it is time. Every rank passes the same boundaries.

        Raises:
            InterruptedRunError: Asked to stop, or the walltime is near.
        """
        position, validated = self._run.position, self._run.validated
        self._boundaries += 1
        if self._ledger:
            self._ledger.update(position.epoch, position.step)
        self._tell(self._writer.reap)
        answer = self.poll.ask()
        saved = self.save(wait=answer.stop is not None) if answer.save else None
        if answer.stop:
            self._tell_short(self._boundaries == 1 and self._deadline.is_near())
            place = f"after step {position.step} of {num_steps}"
            if validated.steps:
                place += f" and batch {validated.steps} of {validated.num_steps} of validation"
            kept = "the state is saved" if saved else "an older state is kept"
            message = (
                f"{answer.stop}: interrupted in epoch {position.epoch + 1} {place}:"
                f" {kept}, start the run again to go on"
            )
            if self._ledger:
                self._ledger.end("interrupted", message)
            self._distributed.barrier()  # torchrun kills the others as soon as one has left
            raise InterruptedRunError(message)

    def _tell_short(self, is_short: bool) -> None:
        """Tell once that the job leaves this attempt time for one step; rank 0 knows."""
        if is_short and not self._is_short_told:
            self._is_short_told = True
            log.warning("%s", self._deadline.shortage())

    def save(self, *, is_best: bool = False, wait: bool = False, postpone: bool = False) -> bool:
        """Copy the state, and write it beside the training. Collective.

        A full disk costs a warning and an interval, not the run.

        Args:
            is_best: Write the best model too, for people who look; the declared one comes last.
            wait: Until the state is on the disk.
            postpone: While the one before is still on its way, to the boundary after that: epochs
                may be shorter than a write.

        Returns:
            Whether it is (rank 0 knows), or is on its way there.
        """
        started = time.monotonic()
        self._check()
        reach("snapshot")
        copying = time.monotonic()
        state, written = self._run.capture(self._recipe), True
        copy_seconds = time.monotonic() - copying
        if self._distributed.is_main:
            self._is_best_owed |= is_best
            if postpone and self._writer.is_busy:
                self._is_owed = True
                self.poll.hasten()
                return True
            self._tell(self._writer.drain)
            copying = time.monotonic()
            model = self._outputs.model(self._run) if self._is_best_owed else None
            copied = self._writer.copy(state)
            copy_seconds += time.monotonic() - copying
            self._is_owed = self._is_best_owed = False
            reach("copied")

            def write() -> None:
                try:
                    self._checkpoints.save(copied)
                except UnconfirmedError as error:
                    log.warning(UNCONFIRMED, error)
                if model is not None:
                    with contextlib.suppress(OSError):  # a full disk: the next state warns of it
                        self._outputs.write_model(model)

            self._writer.submit(write, partial(self._note_saved, state.progress, state.seconds))
            if wait or self._waits:
                written = self._tell(self._writer.drain)
        self.poll.note_copy(copy_seconds, time.monotonic() - started)
        return written

    def _note_saved(self, progress: tuple[int, int], trained: float, took: float) -> None:
        self._saved = progress
        if self._ledger:
            self._ledger.keep(trained)
        self.poll.note_write(took)

    def _tell(self, collect: Callable[[], None]) -> bool:
        """Take note of a write that has ended; tell when it has failed."""
        try:
            collect()
        except OSError as error:
            log.warning("state not saved (%s): the files are as before, going on", error)
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """Note why the attempt ends, unless it has been closed with a better reason.

        A child that the network has forked, and that comes here by mistake, leaves at once: neither
        the claim nor the files are its own.
        """
        if os.getpid() != self._pid:
            code = getattr(error, "code", 1)  # of sys.exit
            os._exit(code if isinstance(code, int) else 1)
        if self._ledger:
            with contextlib.suppress(OSError, OutlastError):  # the error itself is the news
                self._writer.drain()
            if self._has_begun:  # what comes before a step comes again in seconds anyway
                with contextlib.suppress(OSError, LostClaimError):
                    self._failures.note(error, self._recipe, self._saved)
            self._ledger.fail(error)

    def finish(self, stopped: str) -> dict[str, Any]:
        """Write the declared outputs; all ranks leave together. Collective.

        Returns:
            The content of history.json (on rank 0; the others lack the attempts).
        """
        attempts, seconds = 0, 0.0
        if self._distributed.broadcast(self._is_owed):
            self.save()
        self._tell(self._writer.drain)
        if self._ledger:
            self._ledger.update(self._run.position.epoch, self._run.position.step)
            attempts, seconds = self._ledger.number, self._ledger.lost_seconds
        content = self._outputs.history(self._run, stopped, attempts, seconds)
        if self._ledger:
            self._outputs.write_model(self._outputs.model(self._run))
            reach("outputs")
            self._outputs.write_history(content)
            self._failures.clear()
            reach("end")
            self._ledger.end("completed", stopped)
        self._distributed.barrier()
        return content
