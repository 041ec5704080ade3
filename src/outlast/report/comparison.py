"""The leaderboard as a figure: validation beside test."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from outlast.report.ranking import Setting, Summary
from outlast.report.results import score_of, words_of
from outlast.report.style import BLACK, BLUE, GREY, PALE, VERMILION, figure_file
from outlast.report.wording import wrap_name

MOST_ROWS = 60  # a page; the table has the others
Panel = tuple[str, str, list[list[float | None]], list[Summary]]


def draw_comparison(settings: Sequence[Setting], out_png: Path, title: str) -> None:
    """Draw every replicate and the mean ± standard deviation of each setting, best on top.

    The second panel shows, on the same scale, the test score that measures the same thing as the
    selection metric: what validation promised, and what test held.

    Args:
        settings: Best first. Beyond 60, the best 60 are drawn.
        out_png: 1350 pixels wide; the height grows with the settings.
        title: Name of the experiment.
    """
    shown = settings[:MOST_ROWS]
    names = [
        wrap_name(f"{place}. {setting.name}", 44, max_lines=3)
        for place, setting in enumerate(shown, start=1)
    ]
    height = 1.7 + sum(0.12 + 0.15 * len(lines) for lines in names)
    if len(shown) < len(settings):
        title += f" (best {len(shown)} of {len(settings)} settings)"
    with figure_file(out_png, width=9.0, height=max(height, 2.6), title=title) as figure:
        panels = _panels(shown)
        axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for ax, (split, words, dots, summaries) in zip(axes, panels, strict=True):
            colour = BLUE if split == "validation" else VERMILION
            _draw_panel(ax, dots, summaries, colour)
            ax.set(title=split, xlabel=words)
        _label_rows(axes[0], names, shown)
        _put_legend(figure, axes[0], any(len(setting.runs) > 1 for setting in shown))


def _panels(settings: Sequence[Setting]) -> list[Panel]:
    """Return split, words, replicates and summaries of one or two panels."""
    first = settings[0].runs[0]
    metric, split = first.selection_metric, first.split
    score = score_of(metric)
    words = words_of(metric) if metric else score
    words += " (nats per row)" if score == "loss" else " (0 to 1)"
    panels: list[Panel] = []
    if any(run.selection is not None for setting in settings for run in setting.runs):
        dots = [[run.selection for run in setting.runs] for setting in settings]
        panels.append(("validation", words, dots, [setting.selection for setting in settings]))
    # without a test split the scores repeat the first panel
    if split == "test" or not panels:
        scores = [[run.scores[score] for run in setting.runs] for setting in settings]
        panels.append((split, words, scores, [setting.scores[score] for setting in settings]))
    return panels


def _draw_panel(
    axes: Axes, dots: Sequence[Sequence[float | None]], summaries: Sequence[Summary], colour: str
) -> None:
    for row, (values, summary) in enumerate(zip(dots, summaries, strict=True)):
        defined = [value for value in values if value is not None]
        if len(values) > 1:
            axes.plot(defined, [row] * len(defined), "o", color=colour, alpha=0.45, markersize=5)
        if summary.mean is not None:
            axes.errorbar(
                summary.mean,
                row,
                xerr=summary.sd,
                fmt="D",
                color=BLACK,
                markerfacecolor=colour,
                markersize=5.5,
                elinewidth=1.3,
                capsize=3,
            )
        elif not defined:
            axes.text(
                0.5,
                row,
                "undefined",
                transform=axes.get_yaxis_transform(),
                color=GREY,
                ha="center",
                va="center",
                fontsize=8,
            )
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.08)


def _label_rows(axes: Axes, names: Sequence[Sequence[str]], settings: Sequence[Setting]) -> None:
    size = 8.5 if len(names) <= 20 else 7.5  # points
    axes.set_yticks(range(len(names)), ["\n".join(lines) for lines in names], fontsize=size)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if settings[0].selection.mean is None:
        return
    axes.get_yticklabels()[0].set_fontweight("bold")
    for panel in axes.figure.axes:
        panel.axhspan(-0.5, 0.5, color=PALE, zorder=0)


def _put_legend(figure: Figure, axes: Axes, with_replicates: bool) -> None:
    if not with_replicates:
        return
    (dot,) = axes.plot([], [], "o", color=GREY, alpha=0.6, markersize=5)
    gap = [math.nan]
    bar = axes.errorbar(gap, gap, xerr=gap, fmt="D", color=BLACK, markerfacecolor=GREY, capsize=3)
    handles: list[Any] = [dot, bar]
    words = ["replicate", "mean ± standard deviation"]
    figure.legend(handles, words, loc="outside lower center", ncols=2)
