"""The lines of the log, as text."""

from outlast.metric_names import operating_point
from outlast.train.history import Row

_SHOWN = (
    ("val_loss", "loss"),
    ("val_acc", "acc"),
    ("val_f1", "f1"),
    ("val_auc", "auc"),
)


def printable(text: str) -> str:
    """Replace what is no character to see: a file may hold orders to the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def epoch_line(
    row: Row,
    epochs: int,
    metric: str,
    base_rate: float,
    strength: float = 0.0,
    has_validation: bool = True,
) -> str:
    """Return the line of one epoch; ``[*]`` stands behind the selection metric.

    Args:
        row: Of the history.
        epochs: Of the run.
        metric: Name of the selection metric.
        base_rate: Learning rate that needs no mention.
        strength: Of the adversary in this epoch.
        has_validation: Without, nothing is said of it; with it, an undefined metric is 0.
    """
    parts = [
        f"epoch {row['epoch']}/{epochs}",
        f"train loss {_number(row['train_loss'])} acc {_number(row['train_acc'])}",
    ]
    if has_validation:
        shown = [
            f"{word} {_number(row[key])}{' [*]' if key == metric else ''}" for key, word in _SHOWN
        ]
        parts.append(f"val {' '.join(shown)}")
        if operating_point(metric):
            parts.append(f"{metric} {_number(row['val_selection'])} [*]")
    if "train_adv_loss" in row:
        words = f"loss {_number(row['train_adv_loss'])} acc {_number(row['train_adv_acc'])}"
        parts.append(f"adversary {words} lambda {strength:.3g}")
    if "train_reg_loss" in row:
        words = f"loss {_number(row['train_reg_loss'])}"
        if row["val_reg_loss"] is not None:
            words += f" val {_number(row['val_reg_loss'])}"
        parts.append(f"regression {words}")
    rate = row["learning_rate"]
    if rate != base_rate:
        parts.append(f"lr {rate:.3g}")
    return " | ".join(parts)


def best_line(row: Row, metric: str) -> str:
    """Return the line of a new best."""
    return f"new best: epoch {row['epoch']}, {metric} {_number(row['val_selection'])}"


def _number(value: float | int | None) -> str:
    # an undefined metric is shown as 0.0; the history says null
    return f"{value or 0.0:.4f}"
