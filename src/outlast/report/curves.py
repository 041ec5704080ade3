"""The learning curves of one run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from outlast.report.results import read_json, words_of
from outlast.report.style import BLACK, BLUE, GREEN, GREY, VERMILION, figure_file

Series = Sequence[float | None]

# characters that are left for the last entry of the legends
WIDEST_SCORE, WIDEST_BEST = 40, 64


def curves(history_path: Path, out_png: Path, title: str) -> None:
    """Draw loss, scores and, where it changes, the learning rate over the epochs of a run.

    Args:
        history_path: history.json of the run. Null values leave gaps.
        out_png: 1200 x 900 pixels; 1200 x 1080 with a learning rate that changes.
        title: Usually the run's name; broken at commas where it is long.

    Raises:
        DataError: The history cannot be read.
    """
    history = read_json(history_path)
    rates = [rate for rate in history["learning_rate"] if rate is not None]
    with_rate = len(set(rates)) > 1
    height = 7.2 if with_rate else 6.0
    with figure_file(out_png, width=8.0, height=height, title=title) as figure:
        panels = _make_panels(figure, with_rate)
        _draw_loss(panels[0], history)
        _draw_scores(panels[1], history)
        if with_rate:
            _draw_rate(panels[2], history)
        for panel in panels:
            label = _best_words(history) if panel is panels[0] else ""
            panel.axvline(
                history["best"]["epoch"],
                color=GREY,
                linewidth=1.2,
                linestyle=(0, (4, 3)),
                zorder=1,
                label=label,
            )
        for panel in panels[:2]:
            # above the panel: inside, it would cover a curve sooner or later
            panel.legend(
                loc="lower left",
                bbox_to_anchor=(0.0, 1.0),
                ncols=3,
                borderaxespad=0.1,
                handlelength=2.4,
            )
        panels[-1].set_xlabel("epoch")
        panels[-1].xaxis.set_major_locator(
            MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
        )
        first, last = history["epoch"][0], history["epoch"][-1]
        # a margin in epochs: half an epoch for a single one, 2 % of the run for many
        margin = max(0.5, 0.02 * (last - first))
        panels[-1].set_xlim(first - margin, last + margin)


def _make_panels(figure: Figure, with_rate: bool) -> list[Axes]:
    ratios = [3, 3, 1] if with_rate else [1, 1]
    return list(figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios))


def _draw_loss(axes: Axes, history: Mapping[str, Any]) -> None:
    _draw(axes, history["epoch"], history["train_loss"], BLUE, "training")
    _draw(axes, history["epoch"], history["val_loss"], VERMILION, "validation")
    axes.set_ylabel("loss (nats per row)")


def _draw_scores(axes: Axes, history: Mapping[str, Any]) -> None:
    epochs, metric = history["epoch"], history["selection_metric"]
    _draw(axes, epochs, history["train_acc"], BLUE, "training accuracy", style=":")
    chosen = " (selection)" if metric == "val_acc" else ""
    _draw(axes, epochs, history["val_acc"], VERMILION, f"validation accuracy{chosen}")
    if metric not in (None, "val_acc", "val_loss"):
        words = f"validation {words_of(metric)} (selection)"
        words = _break(words, " at ", WIDEST_SCORE)
        _draw(axes, epochs, history["val_selection"], GREEN, words, style="--")
    axes.set_ylabel("score (0 to 1)")


def _draw_rate(axes: Axes, history: Mapping[str, Any]) -> None:
    _draw(axes, history["epoch"], history["learning_rate"], BLACK, "learning rate")
    axes.set_ylabel("learning\nrate")


def _draw(
    axes: Axes, epochs: Sequence[int], values: Series, colour: str, label: str, style: str = "-"
) -> None:
    """Draw one line over the epochs; nothing where all values are undefined."""
    numbers = [math.nan if value is None else value for value in values]
    if all(math.isnan(number) for number in numbers):
        return
    # between gaps a line has no length: markers show the values that stand alone
    gaps = [math.isnan(number) for number in numbers]
    alone = [
        place
        for place, gap in enumerate(gaps)
        if not gap and all(gaps[max(place - 1, 0) : place] + gaps[place + 1 : place + 2])
    ]
    marker = "o" if alone else ""
    axes.plot(
        epochs, numbers, style + marker, color=colour, label=label, markersize=5, markevery=alone
    )


def _best_words(history: Mapping[str, Any]) -> str:
    best, metric = history["best"], history["selection_metric"]
    ended = {"early_stopping": ", stopped early"}.get(history["stopped"], "")
    epochs = f"epoch {best['epoch']} of {history['epoch'][-1]}{ended}"
    if best["val_selection"] is None:
        return f"kept: {epochs}"  # nothing was compared, so none is called the best
    value = f"{best['val_selection']:.4g}"
    return _break(
        f"best: {epochs}; validation {words_of(metric)} = {value}", " validation", WIDEST_BEST
    )


def _break(words: str, before: str, width: int) -> str:
    """Break a legend that is too wide: it would take its width from the panels."""
    return words if len(words) <= width else words.replace(before, f"\n{before.lstrip()}")
