"""history.json: one list per key, all of one length; null where a metric is undefined."""

import math
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

Row = dict[str, float | int | None]


class History:
    """The epochs behind a run. Lives in the state file, so no retry can lose or double a row."""

    def __init__(self) -> None:
        """No epoch yet."""
        self.rows: list[Row] = []

    def __len__(self) -> int:
        """Return the number of epochs."""
        return len(self.rows)

    def append(self, row: Row) -> None:
        """Add one epoch: exactly the keys of ``HISTORY_KEYS``. Not-a-number becomes None."""
        assert set(row) == set(HISTORY_KEYS), set(row) ^ set(HISTORY_KEYS)
        self.rows.append({key: _finite_or_none(row[key]) for key in HISTORY_KEYS})

    def column(self, key: str) -> list[Any]:
        """Return one key over the epochs."""
        return [row[key] for row in self.rows]

    def columns(self) -> dict[str, list[Any]]:
        """Return every key as a list over the epochs."""
        return {key: self.column(key) for key in HISTORY_KEYS}


def _finite_or_none(value: float | int | None) -> float | int | None:
    return None if value is None or not math.isfinite(value) else value
