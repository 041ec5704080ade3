from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from results_on_disk import make_history, make_metrics, write_experiment, write_json

from outlast.report.comparison import _panels
from outlast.report.confusion import confusion
from outlast.report.curves import curves
from outlast.report.leaderboard import collect
from outlast.report.ranking import rank
from outlast.report.results import read_results
from outlast.report.style import BLUE, GREEN, VERMILION

Settings = dict[str, list[tuple[float | None, float | None]]]
LONG = "optimizer=adamw__learning_rate=0.0003__weight_decay=0.0001__network=my_networks.py-CellNet"


def read_pixels(path: Path) -> np.ndarray:
    """Return the picture as (height, width, 3) bytes, with the resolution checked."""
    with Image.open(path) as image:
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        return np.asarray(image.convert("RGB"))


def count_colour(pixels: np.ndarray, colour: str) -> int:
    """Return the number of pixels of exactly this colour."""
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return int((pixels == wanted).all(axis=-1).sum())


def ink_at_border(pixels: np.ndarray) -> int:
    """Return the number of pixels of the outermost frame that are not white."""
    frame = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    return sum(int((side < 250).any(axis=-1).sum()) for side in frame)


def draw_curves(folder: Path, history: dict[str, object], title: str = "lr=1") -> np.ndarray:
    """Draw a history and return the picture."""
    path = write_json(folder / "history.json", history)
    curves(path, folder / "curves.png", title)
    return read_pixels(folder / "curves.png")


def test_curves_have_every_line(tmp_path: Path) -> None:
    """Training, validation and selection lines are there; the size is as documented."""
    pixels = draw_curves(tmp_path, make_history([0.1 + 0.02 * k for k in range(30)]))
    assert pixels.shape == (900, 1200, 3)
    for colour in (BLUE, VERMILION, GREEN):
        assert count_colour(pixels, colour) > 300
    assert ink_at_border(pixels) == 0


def test_learning_rate_has_a_panel_where_it_changes(tmp_path: Path) -> None:
    """A schedule makes the picture higher by one panel."""
    rates = [1e-3 / (1 + k) for k in range(12)]
    pixels = draw_curves(tmp_path, make_history([0.5] * 12, "val_auc", rates))
    assert pixels.shape == (1080, 1200, 3)


def test_single_epoch_is_visible(tmp_path: Path) -> None:
    """One epoch has no line: each value is a dot, outside the legend too."""
    pixels = draw_curves(tmp_path, make_history([0.5]))
    middle = pixels[:, 500:800]
    for colour in (BLUE, VERMILION, GREEN):
        assert count_colour(middle, colour) > 20


def test_isolated_values_between_nulls_are_visible(tmp_path: Path) -> None:
    """A value with an undefined one on either side is a dot, not a line of no length."""
    alone = [0.5 if k % 2 == 0 else None for k in range(20)]
    some = count_colour(draw_curves(tmp_path, make_history(alone)), GREEN)
    none = count_colour(draw_curves(tmp_path, make_history([None] * 20)), GREEN)
    assert none == 0
    assert some > 10 * 50


def test_a_run_without_validation_has_training_lines_only(tmp_path: Path) -> None:
    """Undefined lines are absent from curves and legend."""
    pixels = draw_curves(tmp_path, make_history([None] * 10, None))
    assert count_colour(pixels, BLUE) > 300
    assert count_colour(pixels, VERMILION) == count_colour(pixels, GREEN) == 0


def test_long_titles_stay_inside(tmp_path: Path) -> None:
    """A long run name is broken at its commas; a $ is no formula."""
    title = LONG + ",dropout=$0.25_{$,scheduler=cosine,batch_size=128__seed=12"
    pixels = draw_curves(tmp_path, make_history([0.5, 0.6]), title)
    assert ink_at_border(pixels) == 0
    assert (pixels[:60, :1000] < 100).any()


@pytest.mark.parametrize("num_classes", [2, 12, 30, 80])
def test_confusion_matrix_of_many_sizes(tmp_path: Path, num_classes: int) -> None:
    """Few or many classes: dark diagonal, light remainder, nothing cut off."""
    counts = np.full((num_classes, num_classes), 1) + 90 * np.eye(num_classes, dtype=int)
    path = write_json(tmp_path / "metrics.json", make_metrics(0.9, counts.tolist()))
    confusion(path, tmp_path / "confusion.png", LONG)
    pixels = read_pixels(tmp_path / "confusion.png")
    assert 700 < pixels.shape[1] <= 2300
    assert ink_at_border(pixels) == 0
    shades = np.unique(pixels.astype(np.int64) @ [65536, 256, 1])
    assert len(shades) > 50


def test_numbers_are_in_the_cells_of_up_to_forty_classes(tmp_path: Path) -> None:
    """White digits stand on the dark diagonal of 40 classes; with 41 there are only colours."""
    digits = {}
    for num_classes in (40, 41):
        counts = 90 * np.eye(num_classes, dtype=int)
        path = write_json(tmp_path / "metrics.json", make_metrics(1.0, counts.tolist()))
        confusion(path, tmp_path / "confusion.png", "run")
        pixels = read_pixels(tmp_path / "confusion.png")
        dark = count_colour(pixels, "#08306B")  # the colour of a share of 1
        cell = int(0.8 * np.sqrt(dark / num_classes))  # cells are nearly square
        assert cell > 15
        without_colorbar = pixels[:, : int(0.8 * pixels.shape[1])]
        rows, columns = np.nonzero((without_colorbar == (0x08, 0x30, 0x6B)).all(axis=-1))
        top = pixels[rows.min() : rows.min() + cell, columns.min() : columns.min() + cell]
        digits[num_classes] = int((top > 200).all(axis=-1).sum())
    assert digits[40] > 10
    assert digits[41] == 0


def test_a_class_without_rows_is_grey(tmp_path: Path) -> None:
    """An absent class has no shares: its row is grey, and no share is divided by 0."""
    path = write_json(tmp_path / "metrics.json", make_metrics(1.0, [[5, 1], [0, 0]]))
    confusion(path, tmp_path / "confusion.png", "run")
    pixels = read_pixels(tmp_path / "confusion.png")
    assert count_colour(pixels, "#EEEEEE") > 50_000


def draw_leaderboard(
    folder: Path, settings: dict[str, list[tuple[float | None, float | None]]]
) -> np.ndarray:
    """Collect an experiment and return its picture."""
    runs = write_experiment(folder / "exp", settings)
    collect(runs, runs.parent, folder / "out")
    return read_pixels(folder / "out" / "leaderboard.png")


def test_forty_settings_have_a_row_each(tmp_path: Path) -> None:
    """The picture grows with the settings, and long names stay inside."""
    settings: Settings = {
        f"{LONG},hidden={k}": [(0.5 + k / 100, 0.5), (0.52 + k / 100, 0.6)] for k in range(40)
    }
    pixels = draw_leaderboard(tmp_path, settings)
    assert pixels.shape[1] == 1350
    assert pixels.shape[0] > 40 * 30
    assert ink_at_border(pixels) == 0
    for colour in (BLUE, VERMILION):
        assert count_colour(pixels, colour) > 40 * 20


def test_one_run_and_undefined_settings_have_a_picture(tmp_path: Path) -> None:
    """A single run, and a sweep without any validation value, are drawn."""
    one = draw_leaderboard(tmp_path / "one", {"run": [(0.8, 0.7)]})
    assert count_colour(one, BLUE) > 20
    assert count_colour(one, VERMILION) > 20
    none = draw_leaderboard(tmp_path / "none", {"a": [(None, 0.5)], "b": [(None, None)]})
    assert count_colour(none, BLUE) == 0
    assert count_colour(none, VERMILION) > 20


def test_the_same_file_is_drawn_twice(tmp_path: Path) -> None:
    """A figure has no clock in it: the same results give the same bytes."""
    path = write_json(tmp_path / "history.json", make_history([0.5, 0.6, 0.7]))
    curves(path, tmp_path / "one.png", "run")
    curves(path, tmp_path / "two.png", "run")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.parametrize("metric", ["tpr_at_fpr:0.01", "callable_at_precision:0.9999"])
def test_an_operating_point_fits_the_figures(tmp_path: Path, metric: str) -> None:
    """Its longer words leave the panels their width; its line and both panels are drawn."""
    history = make_history([0.1 + 0.02 * k for k in range(30)], metric)
    pixels = draw_curves(tmp_path, history | {"stopped": "early_stopping"})
    # without words the panels reach the right margin; their lowest line is the axis
    reach = [np.nonzero((row < 120).all(axis=-1))[0].max(initial=0) for row in pixels[780:860]]
    assert max(reach) > 1150
    assert count_colour(pixels, GREEN) > 300
    assert ink_at_border(pixels) == 0
    settings: Settings = {"a": [(0.8, 0.7), (0.7, 0.6)], "b": [(0.5, 0.4), (None, None)]}
    runs = write_experiment(tmp_path / "exp", settings, metric)
    collect(runs, runs.parent, tmp_path / "out")
    board = read_pixels(tmp_path / "out" / "leaderboard.png")
    assert count_colour(board, BLUE) > 20
    assert count_colour(board, VERMILION) > 20
    assert ink_at_border(board) == 0


@pytest.mark.parametrize("metric", ["val_auc", "tpr_at_fpr:0.01"])
def test_both_panels_measure_what_was_selected(tmp_path: Path, metric: str) -> None:
    """The test panel has the test values of the selection metric, and both have its words."""
    runs = write_experiment(tmp_path / "exp", {"a": [(0.8, 0.7)]}, metric)
    (validation, test) = _panels(rank(read_results(runs, runs.parent)))
    words = "AUROC (0 to 1)" if metric == "val_auc" else "TPR at FPR 0.01 (0 to 1)"
    assert (validation[0], validation[1], validation[2]) == ("validation", words, [[0.8]])
    assert (test[0], test[1], test[2]) == ("test", words, [[0.7 if metric == "val_auc" else 0.35]])
