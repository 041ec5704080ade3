"""history.json: one list per key, all of one length; null where a metric is undefined."""

import math
from collections.abc import Mapping
from typing import Any

HISTORY_JSON = "history.json"

HISTORY_KEYS = (
    "epoch",
    "train_loss",
    "train_acc",
    "val_loss",
    "val_acc",
    "val_auc",
    "val_f1",
    "val_selection",
    "learning_rate",
    "seconds",
    "samples_per_second",
)

# one more list each, with the head
ADVERSARY_KEYS = ("train_adv_loss", "train_adv_acc")
REGRESSION_KEYS = ("train_reg_loss", "val_reg_loss")

Row = dict[str, float | int | None]


class History:
    """The epochs behind a run. Lives in the state file, so no retry can lose or double a row."""

    def __init__(self, *, adversary: bool = False, regression: bool = False) -> None:
        """No epoch yet. The heads that there are bring their own keys."""
        self.rows: list[Row] = []
        self.keys = (
            *HISTORY_KEYS,
            *(ADVERSARY_KEYS if adversary else ()),
            *(REGRESSION_KEYS if regression else ()),
        )

    def __len__(self) -> int:
        """Return the number of epochs."""
        return len(self.rows)

    def append(self, row: Row) -> Row:
        """Add one epoch, and return it: ``keys`` of ``row``. Not-a-number becomes None."""
        self.rows.append({key: _finite_or_none(row[key]) for key in self.keys})
        return self.rows[-1]

    def column(self, key: str) -> list[Any]:
        """Return one key over the epochs."""
        return [row[key] for row in self.rows]

    def columns(self) -> dict[str, list[Any]]:
        """Return every key as a list over the epochs."""
        return {key: self.column(key) for key in self.keys}


def means(sums: Mapping[str, float], rows: int) -> Row:
    """Return the training keys of an epoch from the sums of its meter.

    Args:
        sums: Over all ranks, as in ``Meter.totals``; those of an absent head are ignored later.
        rows: Trained in the epoch.
    """
    return {
        "train_loss": sums["loss"] / rows,
        "train_acc": sums["correct"] / rows,
        "train_adv_loss": _ratio(sums["adversary_loss"], sums["adversary_known"]),
        "train_adv_acc": _ratio(sums["adversary_correct"], sums["adversary_known"]),
        "train_reg_loss": _ratio(sums["regression_loss"], sums["regression_valid"]),
    }


def _ratio(total: float, count: float) -> float | None:
    return total / count if count else None


def _finite_or_none(value: float | int | None) -> float | int | None:
    return None if value is None or not math.isfinite(value) else value
