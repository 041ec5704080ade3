"""The declared outputs of a run: model_best.pt and history.json."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.data.dataset import DataSet
from outlast.files import write_json
from outlast.model.file import MODEL_BEST, ModelFile
from outlast.model.heads import split_weights
from outlast.objective.objective import Objective
from outlast.recipe import NUMBER_SECTIONS, Recipe, fingerprint
from outlast.sections import Config
from outlast.train.claim import Claim, Unclaimed, writing
from outlast.train.history import HISTORY_JSON
from outlast.train.state import RunState


@contextmanager
def _named(path: Path) -> Iterator[Path]:
    """Name the file in the error of a write, which names none."""
    try:
        yield path
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@dataclass(frozen=True)
class Outputs:
    """Writes the outputs of one run from its state; as often as they are missing."""

    folder: Path
    claim: Claim | Unclaimed
    data: DataSet
    objective: Objective
    config: Config
    recipe: Recipe
    metric: str

    def model(self, run: RunState) -> ModelFile:
        """Return what model_best.pt shall hold; training changes nothing of it."""
        weights, heads = split_weights(run.best_weights)
        return ModelFile(
            weights=weights,
            heads=heads,
            buffers={key.removeprefix("network."): v for key, v in run.best_buffers.items()},
            config=self.config.model_dump(mode="json", include=NUMBER_SECTIONS),
            classes=self.data.classes,
            row_shapes={name: list(shape) for name, shape in self.data.row_shapes.items()},
            num_outputs=self.objective.num_outputs,
            normalization=self.data.normalization.state(),
            data_content=self.data.content,
            best=self._best(run),
            fingerprint=fingerprint(self.recipe),
        )

    def write_model(self, model: ModelFile) -> None:
        """Write model_best.pt.

        Raises:
            OSError: Not written; the one before is intact.
            LostClaimError: Not written: the folder is another attempt's now.
        """
        with _named(self.folder / MODEL_BEST) as path, writing(self.claim):
            model.save(path, self.claim.staging)

    def history(
        self, run: RunState, stopped: str, attempts: int, lost_seconds: float
    ) -> dict[str, Any]:
        """Return the content of history.json.

        Args:
            run: At its end.
            stopped: ``completed`` or ``early_stopping``.
            attempts: Starts of this run, this one included.
            lost_seconds: Of all of them, in no state.
        """
        return {
            **run.history.columns(),
            "best": self._best(run),
            "selection_metric": self.metric,
            "stopped": stopped,
            "fingerprint": fingerprint(self.recipe),
            "attempts": attempts,
            "kept_seconds": sum(run.history.column("seconds")),
            "lost_seconds": lost_seconds,
        }

    def write_history(self, content: dict[str, Any]) -> None:
        """Write history.json.

        Raises:
            OSError: Not written; the one before is intact.
            LostClaimError: Not written: the folder is another attempt's now.
        """
        with _named(self.folder / HISTORY_JSON) as path, writing(self.claim):
            write_json(path, content, self.claim.staging)

    def _best(self, run: RunState) -> dict[str, Any]:
        """Return epoch and metrics of the best weights: the last epoch without validation."""
        epoch = run.selection.best_epoch or len(run.history)
        row = run.history.rows[epoch - 1]
        values = {key: row[key] for key in row if key == "epoch" or key.startswith("val_")}
        return {**values, "selection_metric": self.metric}
