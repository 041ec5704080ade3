"""One command a verb. Parses, calls, and turns our errors into a message and an exit code.

torch is imported by the verbs that need it, when they run: signals must be caught before that,
and `--help` must not take seconds.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.config import read_yaml
from outlast.errors import ConfigError, OutlastError
from outlast.faults import reach
from outlast.orphans import die_with_torchrun
from outlast.sections import Config
from outlast.sweep import expand
from outlast.train.interrupt import Interrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.verb(options) or 0)
    except (OutlastError, OSError) as error:  # a path that is no folder, a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # of the verbs that have nothing to save
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="outlast", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    check = verbs.add_parser("check", help="say what training would refuse, or what it would do")
    check.add_argument("config", help="experiment file, or its content as JSON: {...}")
    check.set_defaults(verb=_check)

    _add_doctor(verbs)

    prepare = verbs.add_parser("prepare", help="read the source, split it, write the data folder")
    _add_config(prepare)
    prepare.add_argument("--out", type=Path, required=True, help="data folder to write")
    prepare.set_defaults(verb=_prepare)

    train = verbs.add_parser("train", help="train one run, or go on with it (under torchrun)")
    _add_config(train)
    # not --run: torchrun takes that for a short form of its own --run-path
    train.add_argument("--run-name", help="which run, if the config has a sweep")
    train.add_argument("--data", type=Path, required=True, help="data folder of prepare")
    train.add_argument("--out", type=Path, required=True, help="run folder")
    train.add_argument("--checkpoint-every", type=float, help="replaces checkpoint.every_seconds")
    train.add_argument("--device", help="replaces launch.device")
    train.add_argument("--threads", type=int, help="replaces launch.threads")
    train.add_argument("--world-size", type=int, help="ranks that there must be, on all nodes")
    train.set_defaults(verb=_train)

    evaluate = verbs.add_parser("evaluate", help="score a model on the test split")
    evaluate.add_argument("--model", type=Path, required=True, help="model_best.pt")
    evaluate.add_argument("--data", type=Path, required=True, help="data folder of prepare")
    evaluate.add_argument("--out", type=Path, required=True, help="folder for the results")
    evaluate.set_defaults(verb=_evaluate)

    inspect = verbs.add_parser("inspect", help="say what a state or model file holds")
    inspect.add_argument("path", type=Path, help="model_resume.pt or model_best.pt")
    inspect.set_defaults(verb=_inspect)

    history = verbs.add_parser("history", help="list the attempts of a run")
    history.add_argument("run", type=Path, help="run folder")
    history.set_defaults(verb=_history)

    curves = verbs.add_parser("curves", help="draw the learning curves of a run")
    curves.add_argument("--history", type=Path, required=True, help="history.json")
    curves.add_argument("--out", type=Path, required=True, help="PNG to write")
    curves.add_argument("--title", default="", help="usually the name of the run")
    curves.set_defaults(verb=_curves)

    collect = verbs.add_parser("collect", help="make the leaderboard of an experiment")
    collect.add_argument("--runs", type=Path, required=True, help="runs.json of the experiment")
    collect.add_argument("--experiment", type=Path, required=True, help="its folder")
    collect.add_argument("--out", type=Path, required=True, help="folder for table and figures")
    collect.set_defaults(verb=_collect)

    leaderboard = verbs.add_parser("leaderboard", help="print a leaderboard")
    leaderboard.add_argument("table", type=Path, help="leaderboard.tsv")
    leaderboard.set_defaults(verb=_leaderboard)
    return parser


def _add_doctor(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    doctor = verbs.add_parser("doctor", help="look for what would cost a night on this cluster")
    doctor.add_argument("config", nargs="?", default="config/config.yaml", help="experiment file")
    doctor.add_argument("--profile", default="profiles/slurm", help="of Snakemake, for the cluster")
    doctor.add_argument("--no-job", action="store_true", help="send no job to a node")
    doctor.add_argument(
        "--wait", type=float, default=300, metavar="SECONDS", help="that the job may be queued"
    )
    doctor.set_defaults(verb=_doctor)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", required=True, help="experiment file, or its content as JSON: {...}"
    )


def _read_config(text: str) -> tuple[dict[str, Any], str]:
    """Return plain values and their source, from a path or from JSON."""
    if not text.lstrip().startswith("{"):
        return read_yaml(Path(text)), text
    try:
        return json.loads(text), "--config"
    except ValueError as error:
        raise ConfigError([f"no valid JSON: {error}"], "--config") from error


def _choose_run(content: Mapping[str, Any], source: str, name: str | None) -> Config:
    runs = {run.name: run.config for run in expand(content, source)}
    if name is None and len(runs) == 1:
        return next(iter(runs.values()))
    if name not in runs:
        given = "none was named" if name is None else f"{name} is not among them"
        raise ConfigError([f"--run-name: {given}; there are: {', '.join(runs)}"], source)
    return runs[name]


def _check(options: argparse.Namespace) -> None:
    content, source = _read_config(options.config)
    runs = expand(content, source)
    # only now torch: a misspelt key is told at once
    from outlast.check.findings import check
    from outlast.check.overview import show

    show(check(runs, source))


def _doctor(options: argparse.Namespace) -> int:
    from outlast.config import parse
    from outlast.doctor.examination import examine

    content, source = _read_config(options.config)
    wait_s = None if options.no_job else options.wait
    return examine(parse(content, source), options.profile, wait_s)


def _prepare(options: argparse.Namespace) -> None:
    from outlast.config import parse
    from outlast.data.splits import notable_splits
    from outlast.data.store import open_data, prepare

    content, source = _read_config(options.config)
    section = parse(content, source).data
    manifest = prepare(section, options.out)
    data = open_data(options.out)
    for line in notable_splits(data.label, data.splits, section.split, data.classes):
        print(f"note: {line}")
    rows = sum(sum(counts.values()) for counts in manifest["counts"].values())
    print(f"{options.out}: {rows} rows, content {manifest['content'][:12]}")


def _train(options: argparse.Namespace) -> int:
    interrupt = Interrupt().install()
    die_with_torchrun()
    content, source = _read_config(options.config)
    for section, key, value in (
        ("checkpoint", "every_seconds", options.checkpoint_every),
        ("launch", "device", options.device),
        ("launch", "threads", options.threads),
    ):
        if value is not None:
            content = {**content, section: {**content.get(section, {}), key: value}}
    config = _choose_run(content, source, options.run_name)
    reach("import")
    from outlast.train.run import train_run

    return train_run(config, options.data, options.out, interrupt, options.world_size)


def _evaluate(options: argparse.Namespace) -> None:
    from outlast.evaluate.score import evaluate

    evaluate(options.model, options.data, options.out)


def _inspect(options: argparse.Namespace) -> None:
    from outlast.train.inspect import show_file

    show_file(options.path)


def _history(options: argparse.Namespace) -> None:
    from outlast.train.attempts import show_attempts

    show_attempts(options.run)


def _curves(options: argparse.Namespace) -> None:
    from outlast.report.curves import curves

    curves(options.history, options.out, options.title)


def _collect(options: argparse.Namespace) -> None:
    from outlast.report.leaderboard import collect

    collect(options.runs, options.experiment, options.out)


def _leaderboard(options: argparse.Namespace) -> None:
    from outlast.report.leaderboard import show

    show(options.table)
