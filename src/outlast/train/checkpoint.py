"""model_resume.pt: written atomically, verified before it is parsed, bound to its recipe.

Not a declared output on purpose: Snakemake deletes the declared outputs of a failed job.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch

from outlast.errors import CheckpointError
from outlast.files import TEMPORARY_MARK, remove_leftovers, seal_into, write_atomically
from outlast.model.weights import is_extra_state
from outlast.recipe import Recipe, changed_keys, fingerprint, is_same
from outlast.train.claim import Claim, Unclaimed, writing
from outlast.train.readable import refuse_unreadable
from outlast.train.state import READABLE_FORMATS, SavedState
from outlast.train.state_file import UnusableState, read_state

MODEL_RESUME = "model_resume.pt"
MODEL_RESUME_PREVIOUS = "model_resume.prev.pt"


class Checkpoints:
    """The state files of one run folder. Only rank 0 has one."""

    def __init__(self, folder: Path, claim: Claim | Unclaimed | None = None) -> None:
        """Name the files; by default of a folder that nobody else writes to."""
        self.folder, self._claim = folder, claim or Unclaimed(folder)
        self.current = folder / MODEL_RESUME
        self.previous = folder / MODEL_RESUME_PREVIOUS
        self._is_seen = False

    def save(self, state: SavedState) -> int:
        """Write the state, keep the one before as the previous generation; return its bytes.

        Raises:
            OSError: Not written; the old state is intact.
            LostClaimError: Not written: the folder is another attempt's now.
            ModelError: The network puts something into its state that cannot be read back.
        """
        size = 0

        def write(file: BinaryIO) -> None:
            nonlocal size
            seal_into(file, partial(torch.save, state.as_dict()))
            size = file.tell()

        with writing(self._claim):
            refuse_unreadable(self._doubtful(state))
            write_atomically(self.current, write, self.previous, self._claim.staging)
        return size

    def _doubtful(self, state: SavedState) -> dict[str, Any]:
        """Return what may be unreadable: all at first, then what a network is free to change."""
        if not self._is_seen:
            self._is_seen = True
            return state.as_dict()
        network = state.validation.get("network", {})
        parts = enumerate((state.weights, network.get("rest", {})))
        return {
            f"{number}.{name}": part[name]
            for number, part in parts
            for name in part
            if is_extra_state(name)
        }

    def load(
        self, recipe: Recipe, refusal: Callable[[SavedState], str | None] = lambda state: None
    ) -> tuple[SavedState | None, list[str]]:
        """Find the state to continue from: of this recipe, the furthest that may go on.

        What cannot be used is set aside under a telling name, never deleted and never loaded.

        Args:
            recipe: Of the run as it is configured now.
            refusal: Why a state of this recipe may not go on all the same, or None.

        Returns:
            The state, or None for a fresh start; and lines that tell the user what happened.
        """
        remove_leftovers(self.folder)
        notes: list[str] = []
        state = self._newest(recipe, notes)
        if state is not None:
            reason = refusal(state) if is_same(state.recipe, recipe) else None
            if not is_same(state.recipe, recipe):
                reason = f"changed: {', '.join(changed_keys(state.recipe, recipe))}"
            if reason is not None:
                kept = self._set_aside(state)
                notes.append(f"{reason}; old state kept as {kept}")
                state = None
        elif notes:
            notes.append("no good state is left")
        state = self._recall(recipe, refusal, state, notes) or state
        if state is None and notes:
            notes[-1] += ", starting fresh"
        return state, notes

    def _newest(self, recipe: Recipe, notes: list[str]) -> SavedState | None:
        """Return the state on disk, or the generation before it; of this recipe where one is."""
        for path in (self.current, self.previous):
            state = self._read(path, notes)
            if state is None:
                continue
            if path == self.previous:
                notes.append(f"continuing from the previous generation, {path.name}")
            elif not is_same(state.recipe, recipe) and self._is_ours(self.previous, recipe):
                # somebody put a foreign file beside a generation of this very run
                self._rename(self.current, self._name_for(state))
                notes.append(f"{path.name} is of another recipe: kept under its fingerprint")
                continue
            return state
        return None

    def _set_aside(self, state: SavedState) -> str:
        """Rename the state files after their fingerprint; return the new name."""
        name = self._name_for(state)
        if self.current.exists():
            # first: a kill in between must not leave an old generation to fall back to
            self._drop(self.previous)
            self._rename(self.current, name)
        else:
            self._rename(self.previous, name)
        return name.name

    def _recall(
        self,
        recipe: Recipe,
        refusal: Callable[[SavedState], str | None],
        state: SavedState | None,
        notes: list[str],
    ) -> SavedState | None:
        """Take back what was set aside, if it is of this recipe and further than ``state``."""
        best, place = state, None
        own = sorted(self.folder.glob(f"model_resume.{fingerprint(recipe)[:12]}*.pt"))
        kinds = ("unreadable", *(f"format-{number}" for number in READABLE_FORMATS))
        later = [f"model_resume.{kind}-*.pt" for kind in kinds]
        others = (path for pattern in later for path in sorted(self.folder.glob(pattern)))
        for name in [*own, *others]:
            kept = self._read(name, notes) if name in own else _read_again(name)
            if kept is None or not is_same(kept.recipe, recipe) or refusal(kept):
                continue
            if best is None or kept.progress > best.progress:
                best, place = kept, name
        if place is None:
            return None
        if state is not None:
            self._set_aside(state)
        self._rename(place, self.current)
        notes.append(f"{place.name} was made with this very recipe: taking it back")
        return best

    def _is_ours(self, path: Path, recipe: Recipe) -> bool:
        state = self._read(path, []) if path.exists() else None
        return state is not None and is_same(state.recipe, recipe)

    def _name_for(self, state: SavedState) -> Path:
        # how far it is, too: a longer and a shorter run of one recipe are both kept
        name = f"model_resume.{fingerprint(state.recipe)[:12]}.epoch-{state.epoch}"
        return self.folder / f"{name}{f'.step-{state.step}' if state.step else ''}.pt"

    def _read(self, path: Path, notes: list[str]) -> SavedState | None:
        try:
            return read_state(path)
        except UnusableState as found:
            aside = path.with_name(f"model_resume.{found.kind}.pt")
            self._rename(path, aside)
            notes.append(f"{path.name} is {found.problem}: set aside as {aside.name}")
            return None

    def _rename(self, path: Path, name: Path) -> None:
        """Rename in steps of which none is possible once the claim is lost, and none loses data."""
        with writing(self._claim):
            second = self._claim.staging / f"second{TEMPORARY_MARK}{os.getpid()}"
            second.unlink(missing_ok=True)
            try:
                second.hardlink_to(path)
            except FileNotFoundError:
                raise
            except OSError:  # a folder of that name, or a file system without hard links
                path.replace(name)
                return
            second.replace(name)
        self._drop(path)

    def _drop(self, path: Path) -> None:
        """Remove a name, unless the claim is lost."""
        with writing(self._claim):
            if path.exists():
                trash = self._claim.staging / f"trash{TEMPORARY_MARK}{os.getpid()}"
                path.replace(trash)
                trash.unlink()


def _read_again(path: Path) -> SavedState | None:
    """Return the state in a file that could not be read, if it can be read now."""
    try:
        return read_state(path, patience_s=())
    except (UnusableState, CheckpointError):
        return None
