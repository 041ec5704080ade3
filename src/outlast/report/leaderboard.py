"""The leaderboard: one row per setting, from all runs of an experiment."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outlast.errors import DataError
from outlast.files import write_atomically
from outlast.report.comparison import draw_comparison
from outlast.report.confusion import confusion
from outlast.report.ranking import Setting, rank
from outlast.report.results import RunResult, read_results, score_of, words_of
from outlast.report.wording import wrap_name

PIPED_WIDTH = 100  # columns of a log file; rich would assume 80
WIDE = 98  # columns of the terminal that all scores need
SETTING_WIDTH = 22  # columns that the numbers leave of them


def collect(runs_file: Path, experiment_folder: Path, out_folder: Path) -> RunResult:
    """Compare all runs and write what a reader of the experiment wants to see.

    Writes ``leaderboard.tsv`` (a row per setting, best first), ``runs.tsv`` (a row per run, in
    the order of the leaderboard), ``leaderboard.png``, and ``confusion.png`` of the best run.

    Args:
        runs_file: JSON list of ``{"name", "setting", "values"}``.
        experiment_folder: Holds ``runs/<name>/`` of every run; its name titles the figure.
        out_folder: Made where absent.

    Returns:
        The best run: best validation selection within the best setting.

    Raises:
        DataError: Results of a run are missing, or the runs have no common selection metric.
    """
    settings = rank(read_results(runs_file, experiment_folder))
    best = settings[0].runs[0]
    out_folder.mkdir(parents=True, exist_ok=True)
    rows = [_setting_row(place, setting) for place, setting in enumerate(settings, start=1)]
    _write_table(out_folder / "leaderboard.tsv", rows)
    _write_table(
        out_folder / "runs.tsv",
        [
            _run_row(place, run)
            for place, setting in enumerate(settings, start=1)
            for run in setting.runs
        ],
    )
    draw_comparison(settings, out_folder / "leaderboard.png", title=experiment_folder.name)
    confusion(best.metrics_file, out_folder / "confusion.png", title=best.name)
    return best


def _setting_row(place: int, setting: Setting) -> dict[str, Any]:
    best = setting.runs[0]
    row = {
        "rank": place,
        "setting": setting.name,
        "n": len(setting.runs),
        "selection_metric": best.selection_metric,
        "selection_mean": setting.selection.mean,
        "selection_sd": setting.selection.sd,
        "split": best.split,
    }
    for score, summary in setting.scores.items():
        row[f"{score}_mean"] = summary.mean
        row[f"{score}_sd"] = summary.sd
    return row | {"best_epoch_mean": setting.best_epoch, "best_run": best.name}


def _run_row(place: int, run: RunResult) -> dict[str, Any]:
    return {
        "setting_rank": place,
        "setting": run.setting,
        "run": run.name,
        "selection_metric": run.selection_metric,
        "selection": run.selection,
        "split": run.split,
        **run.scores,
        "best_epoch": run.best_epoch,
        "stopped": run.stopped,
    }


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write tab-separated values; undefined ones are empty fields."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def show(leaderboard_tsv: Path) -> None:
    """Print the leaderboard for people, with a star before the best setting.

    Raises:
        DataError: The file is absent.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    console.print(_shown_table(_read_table(leaderboard_tsv), console.width))


def _read_table(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); `snakemake` writes it when all runs are"
            " evaluated"
        ) from error
    return list(csv.DictReader(io.StringIO(text), delimiter="\t"))


def _shown_table(rows: Sequence[Mapping[str, str]], width: int) -> Table:
    metric, split = rows[0]["selection_metric"], rows[0]["split"]
    shown = _shown_scores(metric, width)
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        caption="mean ± standard deviation of n replicates; sorted by validation alone; * best",
        caption_justify="left",
        padding=(0, 1, 0, 0),
    )
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("setting", overflow="fold", min_width=12)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column(f"validation\n{_heading(metric)}", no_wrap=True)
    for words in shown.values():
        table.add_column(f"{split}\n{words}", no_wrap=True)
    for row in rows:
        # without a defined validation value nothing has been won
        best = row["rank"] == "1" and bool(row["selection_mean"])
        table.add_row(
            f"* {row['rank']}" if best else row["rank"],
            escape("\n".join(wrap_name(row["setting"], SETTING_WIDTH))),
            row["n"],
            *[_shown_summary(row, name) for name in ("selection", *shown)],
            style="bold" if best else "",
        )
    return table


def _shown_scores(metric: str, width: int) -> dict[str, str]:
    """Return which test scores are shown, with their headings; all of them are in the file."""
    shown = {"accuracy": "accuracy", "f1": "F1", "auc": "AUROC"}
    if (own := score_of(metric)) == metric:  # a parametric one has no column among these
        shown = {own: _heading(own), "accuracy": "accuracy", "auc": "AUROC"}
    if width < WIDE:  # room for two of them
        shown.pop("f1" if metric == "val_auc" else "auc")
    return shown


def _heading(metric: str) -> str:
    # three short lines: the widest word must not widen its column beyond the numbers
    return words_of(metric).replace(" at ", " at\n")


def _shown_summary(row: Mapping[str, str], name: str) -> str:
    mean, sd = row[f"{name}_mean"], row[f"{name}_sd"]
    if not mean:
        return "undefined"
    return f"{float(mean):.4f} ± {float(sd):.4f}" if sd else f"{float(mean):.4f}"
