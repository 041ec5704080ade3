"""Which epoch is the best, how long ago that was, and when a run is over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outlast.sections import TrainingSection

Stopped = Literal["completed", "early_stopping"]


def resolve_metric(section: TrainingSection, num_classes: int) -> str:
    """Return the selection metric by name: ``auto`` is AUROC for two classes, else macro F1."""
    if section.selection_metric != "auto":
        return section.selection_metric
    return "val_auc" if num_classes == 2 else "val_f1"


def is_better(value: float | None, best: float | None, lower_is_better: bool) -> bool:
    """Strictly better. Undefined beats nothing; anything defined beats undefined."""
    if value is None or best is None:
        return value is not None
    return value < best if lower_is_better else value > best


@dataclass
class Selection:
    """The best epoch so far (from 1; 0: none yet), and the epochs since."""

    lower_is_better: bool
    best_epoch: int = 0
    best_value: float | None = None
    epochs_since_best: int = 0

    def update(self, epoch: int, value: float | None) -> bool:
        """Take note of the metric of ``epoch``; tell whether it is the best so far.

        The first validated epoch always counts, even with an undefined metric.
        """
        if self.best_epoch == 0 or is_better(value, self.best_value, self.lower_is_better):
            self.best_epoch, self.best_value, self.epochs_since_best = epoch, value, 0
            return True
        self.epochs_since_best += 1
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for the state file."""
        return {
            "best_epoch": self.best_epoch,
            "best_value": self.best_value,
            "epochs_since_best": self.epochs_since_best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.best_epoch, self.best_value = state["best_epoch"], state["best_value"]
        self.epochs_since_best = state["epochs_since_best"]


@dataclass(frozen=True)
class StoppingRule:
    """How long a run lasts. No part of the recipe: a longer run extends a shorter one.

    Attributes:
        epochs: At most that many.
        patience: Epochs without improvement before the end; 0 switches it off.
        has_validation: Without validation nothing can improve, and patience does not count.
    """

    epochs: int
    patience: int
    has_validation: bool

    def reason(self, epochs_done: int, epochs_since_best: int) -> Stopped | None:
        """Return why the run is over after so many epochs, or None."""
        if epochs_done >= self.epochs:
            return "completed"
        stalled = self.has_validation and 0 < self.patience <= epochs_since_best
        return "early_stopping" if stalled else None

    def allows(self, values: Sequence[float | None], lower_is_better: bool) -> bool:
        """Tell whether a run under this rule would have come as far as these epochs.

        Args:
            values: Selection metric of each epoch that a state has behind it.
            lower_is_better: Direction of the metric.
        """
        selection = Selection(lower_is_better)
        for done, value in enumerate(values):
            if self.reason(done, selection.epochs_since_best):
                return False
            selection.update(done + 1, value)
        return True
