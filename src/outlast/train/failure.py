"""failure.json: an error that would come again. The next attempt is refused in seconds.

Snakemake retries whatever fails; a loss that became NaN once becomes NaN again, from the same state
with the same numbers, until the budget of retries is gone.
"""

import contextlib
from pathlib import Path
from typing import Any

from outlast.distributed import Distributed
from outlast.errors import ModelError, NonFiniteLossError
from outlast.files import read_json, write_json
from outlast.model.file import versions
from outlast.recipe import Recipe, fingerprint
from outlast.train.claim import Claim, Unclaimed, writing
from outlast.train.selection import StoppingRule

FAILURE_JSON = "failure.json"
# What depends on nothing but recipe and state. Not a full disk, a lost rank, data that somebody
# edits: the next attempt may do better.
DETERMINISTIC = (NonFiniteLossError, ModelError)


class Failures:
    """The last such error of one run; only rank 0 has it."""

    def __init__(self, folder: Path, claim: Claim | Unclaimed, distributed: Distributed) -> None:
        """Name the file."""
        self._path, self._claim, self._distributed = folder / FAILURE_JSON, claim, distributed
        self.rule: StoppingRule | None = None

    def why_refused(self, recipe: Recipe, start: tuple[int, int]) -> str | None:
        """Return why this attempt would only repeat an earlier one, or None.

        Args:
            recipe: Of the run as it is now.
            start: Epoch and step of the state that it starts from.
        """
        failure = read_json(self._path)
        if not isinstance(failure, dict) or failure.get("key") != self._key(recipe, start):
            return None
        if not isinstance(error := failure.get("error"), str):
            return None
        return (
            f"{error} (an earlier attempt ended so, and nothing has changed since:"
            f" not tried again; remove {self._path} to try it all the same)"
        )

    def note(self, error: BaseException, recipe: Recipe, saved: tuple[int, int]) -> None:
        """Keep an error that comes from the state of epoch and step ``saved``, if it would again.

        Raises:
            OSError: It cannot be written.
            LostClaimError: The folder is another attempt's now.
        """
        if isinstance(error, DETERMINISTIC):
            content = {"key": self._key(recipe, saved), "error": str(error)}
            with writing(self._claim):
                write_json(self._path, content, self._claim.staging)

    def clear(self) -> None:
        """Forget it: the run is at its end, and a file that cannot be removed is in nobody's way.

        Raises:
            LostClaimError: The folder is another attempt's now.
        """
        removed = self._claim.staging / FAILURE_JSON
        with contextlib.suppress(OSError):
            self._claim.ensure()
            self._path.replace(removed)  # which fails where the claim is lost since
            removed.unlink()

    def _key(self, recipe: Recipe, position: tuple[int, int]) -> dict[str, Any]:
        return {
            "fingerprint": fingerprint(recipe),
            "from": list(position),
            "versions": versions(),
            # not in the recipe, and yet what an error may be about
            "ranks": self._distributed.world_size,
            "device": self._distributed.device.type,
            "until": [self.rule.epochs, self.rule.patience] if self.rule else None,
        }
