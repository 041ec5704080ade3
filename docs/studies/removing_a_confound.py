"""What a probe still finds of a confound in the representation, with the adversary and without.

    python docs/studies/removing_a_confound.py results/diabetes

Reads the runs of config/examples/diabetes.yaml; writes the table and the figure of
docs/removing_a_confound.md. The probes learn the confound from the representation of the training
rows and are scored on the test rows, which neither the network nor the probe has seen.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import rankdata, t
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from outlast.data.dataset import DataSet
from outlast.data.store import open_data
from outlast.evaluate.predict import predict
from outlast.model.file import MODEL_BEST, ModelFile, load_model_file
from outlast.report.style import BLACK, BLUE, GREEN, GREY, VERMILION, figure_file

CPU = torch.device("cpu")
NAME = "removing_a_confound"
PROBES = {
    "linear probe": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "forest probe": lambda: RandomForestClassifier(200, min_samples_leaf=3, random_state=0),
}
R_SQUARED, LABEL = "R2 of the target", "label"
RESAMPLES = 2000


@dataclass(frozen=True)
class Representation:
    """What a model makes of some rows: (n, width) values, (n,) logits, (n,) predicted target."""

    values: np.ndarray
    logits: np.ndarray
    target: np.ndarray


def represent(model_file: ModelFile, data: DataSet, rows: np.ndarray) -> Representation:
    """Return the input of the last layer, and what the layers behind it say, for two classes."""
    found = predict(model_file, data, rows, CPU)
    assert found.representation is not None, "every run of the study has a regression head"
    assert found.target is not None, "and it is that head that predicts the target"
    logits = found.logits.reshape(-1)
    return Representation(found.representation.numpy(), logits.numpy(), found.target.numpy())


def probe(kind: str, train: np.ndarray, confound: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Learn a confound of two values (0, 1) from ``train``; return the score of 1 for ``rows``."""
    scores: np.ndarray = PROBES[kind]().fit(train, confound).predict_proba(rows)[:, 1]
    return scores


def auroc(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the AUROC of each line of ``scores`` (..., n) for ``truth`` (n,) of 0 and 1."""
    ranks, positive = rankdata(scores, axis=-1), truth == 1
    n = int(positive.sum())
    result: np.ndarray = ranks[..., positive].sum(-1) - n * (n + 1) / 2
    return result / (n * (len(truth) - n))


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean and the ends of its 95 % confidence interval (Student's t) over seeds."""
    mean, n = float(values.mean()), len(values)
    half = float(t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan
    return mean, mean - half, mean + half


def resampled_difference(
    truth: np.ndarray, without: np.ndarray, with_it: np.ndarray, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Return a 95 % interval of the difference of mean AUROCs, over other test rows.

    Bootstrap (percentiles): the same rows for both, scores (seeds, n) of the same networks.
    """
    generator, found = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = generator.integers(0, len(truth), len(truth))
        if 0 < truth[rows].sum() < len(rows):
            pair = (auroc(truth[rows], scores[:, rows]).mean() for scores in (without, with_it))
            before, after = pair
            found.append(after - before)
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def read_runs(experiment: Path, data: DataSet, split: str) -> dict[float, dict[str, np.ndarray]]:
    """Return strength -> measure -> scores (seeds, n), the seeds in their order."""
    runs = json.loads((experiment / "runs.json").read_text())
    runs.sort(key=lambda run: run["values"]["training.seed"])
    rows = {key: np.asarray(data.splits[key]) for key in ("train", split)}
    confound = _role(data, "confound")[rows["train"]]
    found: dict[float, dict[str, list[np.ndarray]]] = {}
    for run in runs:
        model_file = load_model_file(experiment / "runs" / run["name"] / MODEL_BEST)
        if model_file.data_content != data.content:
            raise SystemExit(f"{run['name']}: trained on other data; run snakemake again")
        train, held_out = (represent(model_file, data, part) for part in rows.values())
        scores = {LABEL: held_out.logits, R_SQUARED: held_out.target}
        scores |= {kind: probe(kind, train.values, confound, held_out.values) for kind in PROBES}
        of_strength = found.setdefault(run["values"]["adversary.strength"], {})
        for measure, values in scores.items():
            of_strength.setdefault(measure, []).append(values)
    return {
        strength: {measure: np.stack(lines) for measure, lines in measures.items()}
        for strength, measures in sorted(found.items())
    }


def _role(data: DataSet, role: str) -> np.ndarray:
    values = data.roles.get(role)
    if values is None:
        raise SystemExit(f"the data have no {role}")
    return np.asarray(values)


def summarize(
    scores: Mapping[float, Mapping[str, np.ndarray]], truths: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """Return one line per strength and measure: mean, and what differs from no adversary.

    Args:
        scores: Of `read_runs`; strength 0 among them.
        truths: Measure -> (n,) what its scores should tell.
    """
    lines: list[dict[str, Any]] = []
    for strength, measures in scores.items():
        for measure, values in measures.items():
            truth, without = truths[measure], scores[0][measure]
            each, before = (_measure(measure, truth, part) for part in (values, without))
            mean, low, high = interval(each)
            line = {"strength": strength, "measure": measure, "seeds": len(each)}
            line |= {"mean": mean, "low": low, "high": high}
            if strength:
                names = ("difference", "difference_low", "difference_high")
                line |= dict(zip(names, interval(each - before), strict=True))
                if measure != R_SQUARED:
                    ends = resampled_difference(truth, without, values)
                    line |= dict(zip(("other_rows_low", "other_rows_high"), ends, strict=True))
            lines.append(line)
    return pd.DataFrame(lines)


def _measure(measure: str, truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    if measure == R_SQUARED:
        return np.array([r2_score(truth, line) for line in scores])
    return auroc(truth, scores)


def probe_inputs(data: DataSet, split: str) -> dict[str, float]:
    """Return the AUROC of each probe on the inputs themselves."""
    (array,) = data.inputs.values()
    train, rows = (np.asarray(data.splits[key]) for key in ("train", split))
    confound = _role(data, "confound")
    return {
        kind: float(auroc(confound[rows], probe(kind, array[train], confound[train], array[rows])))
        for kind in PROBES
    }


def draw(
    scores: Mapping[float, Mapping[str, np.ndarray]],
    truths: Mapping[str, np.ndarray],
    inputs: Mapping[str, float],
    path: Path,
) -> None:
    """Draw every seed, and the means with their intervals: probes left, the task right."""
    panels = (
        ("How well probes find the confound", dict(zip(PROBES, (BLUE, VERMILION), strict=True))),
        ("How well the network tells the label", {LABEL: GREEN}),
    )
    title = "A confound in the representation, and the task, on the test rows"
    with figure_file(path, width=8.0, height=3.9, title=title) as figure:
        for axes, (words, colours) in zip(figure.subplots(1, 2), panels, strict=True):
            for place, (measure, colour) in enumerate(colours.items()):
                shift = 0.24 * (place - (len(colours) - 1) / 2)
                for x, measures in enumerate(scores.values()):
                    each = auroc(truths[measure], measures[measure])
                    mean, low, _ = interval(each)
                    jitter = np.linspace(-0.07, 0.07, len(each))
                    axes.plot(x + shift + jitter, each, "o", color=colour, alpha=0.35, ms=4)
                    axes.errorbar(
                        x + shift,
                        mean,
                        yerr=mean - low,
                        fmt="D",
                        color=BLACK,
                        markerfacecolor=colour,
                        capsize=4,
                        ms=6,
                        label=measure if x == 0 and len(colours) > 1 else None,
                    )
                if measure in inputs:
                    axes.axhline(inputs[measure], color=colour, linestyle="--", linewidth=1.1)
            axes.set(title=words, xlabel="adversary.strength", ylabel="AUROC (0.5: chance)")
            axes.set_xticks(range(len(scores)), [f"{strength:g}" for strength in scores])
            axes.set_xlim(-0.5, len(scores) - 0.5)
            axes.grid(visible=False, axis="x")
        left, right = figure.axes
        left.axhline(0.5, color=GREY, linewidth=1.1)
        left.plot([], [], color=GREY, linestyle="--", linewidth=1.1, label="the same on the inputs")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        middle = np.mean(right.get_ylim())
        reach = np.ptp(left.get_ylim()) / 2  # equal lengths are equal differences
        right.set_ylim(middle - reach, middle + reach)


def main() -> None:
    """Write the table and the figure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path, help="folder of the finished experiment")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for table and figure")
    parser.add_argument("--split", choices=["test", "validation"], default="test")
    options = parser.parse_args()
    data = open_data(options.experiment / "data")
    rows = np.asarray(data.splits[options.split])
    confound, label = _role(data, "confound")[rows], np.asarray(data.label)[rows]
    truths = {LABEL: label, R_SQUARED: _role(data, "target")[rows]}
    truths |= dict.fromkeys(PROBES, confound)
    scores, inputs = (
        read_runs(options.experiment, data, options.split),
        probe_inputs(data, options.split),
    )
    table = summarize(scores, truths)
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / f"{NAME}.tsv", sep="\t", index=False, float_format="%.4f")
    draw(scores, truths, inputs, options.out / f"{NAME}.png")
    print(table.to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    majority = np.bincount(confound).max() / len(confound)
    on_inputs = ", ".join(f"{kind} {value:.3f}" for kind, value in inputs.items())
    print(f"on the inputs: {on_inputs}; {len(rows)} {options.split} rows, majority {majority:.3f}")


if __name__ == "__main__":
    main()
