"""The confusion matrix of one run."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from outlast.report.results import read_json
from outlast.report.style import figure_file
from outlast.report.wording import shorten

CELL = 0.5  # inches of a cell that holds count and share
FEW = 12  # classes up to which a cell has room for count and share
MANY = 40  # classes from which numbers would overlap


def confusion(metrics_path: Path, out_png: Path, title: str) -> None:
    """Draw counts (as numbers) and row shares (as colour) of true against predicted class.

    Args:
        metrics_path: metrics.json of the run.
        out_png: Grows with the classes, from 765 to 2265 pixels of width. Up to 12 classes have
            count and share in each cell, up to 40 the count; beyond that colour alone.
        title: Usually the run's name.

    Raises:
        DataError: The metrics cannot be read.
    """
    metrics = read_json(metrics_path)
    counts = np.asarray(metrics["confusion"], dtype=np.int64)
    size = float(np.clip(2.2 + (CELL if len(counts) <= FEW else 0.3) * len(counts), 4.0, 14.0))
    with figure_file(out_png, width=size + 1.1, height=size + 0.3, title=title) as figure:
        axes = figure.subplots()
        _draw_cells(axes, counts)
        _label_axes(axes, metrics, size)


def _draw_cells(axes: Axes, counts: np.ndarray) -> None:
    rows = counts.sum(axis=1, keepdims=True)
    # a class without rows has no shares: its cells stay grey
    shares = np.ma.masked_invalid(np.where(rows > 0, counts / np.maximum(rows, 1), np.nan))
    axes.set_facecolor("#EEEEEE")
    # square root: a mistake of 2 % is what one looks for, and would be white on a linear scale
    image = axes.imshow(
        shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0.0, vmax=1.0), aspect="auto"
    )
    bar = axes.figure.colorbar(
        image, ax=axes, fraction=0.04, aspect=30, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1]
    )
    bar.set_ticklabels(["0 %", "1 %", "5 %", "20 %", "50 %", "100 %"])
    bar.set_label("share of the true class")
    bar.outline.set_visible(False)
    if len(counts) > MANY:
        return
    for (true, predicted), count in np.ndenumerate(counts):
        share = shares[true, predicted]
        if share is np.ma.masked or count == 0:
            continue  # zeros would drown the mistakes
        text = f"{count}\n{100 * share:.1f} %" if len(counts) <= FEW else f"{count}"
        colour = "white" if share > 0.4 else "black"
        axes.text(
            predicted, true, text, ha="center", va="center", color=colour, fontsize=_font(counts)
        )


def _font(counts: np.ndarray) -> float:
    """Return a size in points at which the widest number fits its cell."""
    width = max(len(str(counts.max())), 6 if len(counts) <= FEW else 2)
    cell = CELL if len(counts) <= FEW else 0.3
    return float(min(10.0, 72 * cell * 0.9 / (0.62 * width)))


def _label_axes(axes: Axes, metrics: dict[str, Any], size: float) -> None:
    names = short_names([str(name) for name in metrics["classes"]])
    many = len(names) > MANY
    ticks = range(0, len(names), max(1, len(names) // MANY) if many else 1)
    labels = [names[tick] for tick in ticks]
    font = 9 if len(names) <= FEW else 7.5
    upright = max(len(label) for label in labels) * 0.075 > (size - 2.2) / len(labels)
    axes.set_xticks(ticks, labels, fontsize=font, rotation=90 if upright else 0)
    axes.set_yticks(ticks, labels, fontsize=font)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="predicted class", ylabel="true class")
    accuracy = f"accuracy {metrics['accuracy']:.3f}, " if metrics["accuracy"] is not None else ""
    axes.set_title(f"{metrics['split']} split: {accuracy}{metrics['rows']} rows", fontsize=9)


def short_names(classes: list[str]) -> list[str]:
    """Return names of at most 24 characters, with the class number where two became equal."""
    names = [shorten(name, 24) for name in classes]
    if len(set(names)) == len(names):
        return names
    return [f"{place}: {shorten(name, 19)}" for place, name in enumerate(classes)]
