"""The look of all figures, and how they reach the disk."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from outlast.files import write_atomically
from outlast.report.wording import wrap_name

DPI = 150
# of the palette of Okabe and Ito (2008): told apart by readers with any colour vision
BLUE, VERMILION, GREEN, BLACK = "#0072B2", "#D55E00", "#009E73", "#222222"
GREY, PALE = "#8A8A8A", "#E8F1F8"

RC: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.formatter.useoffset": False,
    "text.parse_math": False,  # names may hold a $
    "savefig.bbox": None,  # a user's matplotlibrc would change the size
    "savefig.dpi": DPI,
}


@contextmanager
def figure_file(path: Path, width: float, height: float, title: str) -> Iterator[Figure]:
    """Give an empty figure (inches) with a title; write it to ``path`` (PNG) at the end.

    Figure and canvas are made directly: pyplot would keep a global list of open figures.
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        # a bold letter of 11 points is about 0.1 inches wide
        lines = wrap_name(title, int(width / 0.108), max_lines=3)
        figure.suptitle("\n".join(lines), x=0.015, ha="left", fontsize=11, fontweight="bold")
        yield figure
        content = io.BytesIO()
        figure.savefig(content, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())
