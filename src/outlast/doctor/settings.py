"""The settings of the profile without which a run does not outlast its walltime."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outlast.doctor.lines import Line, bad, ok
from outlast.doctor.profile import Profile

TRIGGERS = ("mtime", "params", "input")


@dataclass(frozen=True)
class _Rule:
    """A setting: its names, what it is when nobody sets it, when it is good, and why."""

    names: tuple[str, ...]
    unset: str
    is_good: Callable[[Profile], bool]
    why: str
    fix: str


def _is_positive(*names: str, unset: int) -> Callable[[Profile], bool]:
    return lambda profile: (profile.number(*names, default=unset) or 0) > 0


RULES = (
    _Rule(
        ("executor",),
        "local",
        lambda profile: profile.get("executor") == "slurm",
        "the trainings would not become jobs of SLURM",
        "executor: slurm",
    ),
    _Rule(
        ("retries", "restart-times"),
        "0",
        _is_positive("retries", "restart-times", unset=0),
        "a job that reaches its walltime is not started again",
        "retries: 10",
    ),
    _Rule(
        ("slurm-status-command",),
        "sacct, where there is one",
        lambda profile: profile.get("slurm-status-command") == "squeue",
        "with sacct Snakemake waits for ever after a scancel or where there is no accounting, and"
        " starts an attempt while the one before still ends",
        "slurm-status-command: squeue",
    ),
    _Rule(
        ("rerun-incomplete", "ri"),
        "false",
        lambda profile: profile.is_on("rerun-incomplete", "ri"),
        "after a crash of Snakemake the next start is refused",
        "rerun-incomplete: true",
    ),
    _Rule(
        ("latency-wait", "output-wait"),
        "5",
        _is_positive("latency-wait", "output-wait", unset=5),
        "a model that the shared file system shows a moment later counts as missing",
        "latency-wait: 60",
    ),
)


def setting_lines(profile: Profile) -> Iterator[Line]:
    """Look at each setting of the profile that matters."""
    for rule in RULES:
        value = profile.get(*rule.names)
        shown = f"{rule.unset} (not set)" if value is None else f"{value}"
        if rule.is_good(profile):
            yield ok(rule.names[0], shown)
        else:
            yield bad(rule.names[0], f"{shown}; {rule.why}", f"`{rule.fix}`{_in(profile)}")
    yield _requeue(profile)
    yield from _triggers(profile)
    yield from _gpu_model(profile)


def _in(profile: Profile) -> str:
    return f" in {profile.path}"


def _requeue(profile: Profile) -> Line:
    yes, no = profile.is_on("slurm-requeue"), profile.is_on("slurm-no-requeue")
    subject = "slurm-requeue" if yes and not no else "slurm-no-requeue"
    fix = f"slurm-no-requeue: true alone (slurm-requeue where jobs are preempted){_in(profile)}"
    if yes and no:
        return bad(subject, "slurm-requeue is true as well, and the plugin refuses both", fix)
    if not yes and not no:
        found = "neither it nor slurm-requeue is true; after a dead node SLURM and Snakemake may"
        return bad(subject, f"{found} both start the job again: two writers", fix)
    return ok(subject, "true")


def _triggers(profile: Profile) -> Iterator[Line]:
    subject, value = "rerun-triggers", profile.get("rerun-triggers")
    fix = f"rerun-triggers: [mtime, params, input, software-env]{_in(profile)}"
    if value is None:
        yield bad(subject, "not set, so that a reworded rule (code) trains every model anew", fix)
        return
    names = [str(name) for name in (value if isinstance(value, list) else str(value).split())]
    if "code" in names:
        yield bad(subject, "code is among them: a reworded rule trains every model anew", fix)
    if missing := [name for name in TRIGGERS if name not in names]:
        found = f"without {', '.join(missing)}: changed data or values train nothing anew"
        yield bad(subject, found, fix)
    if "code" not in names and not missing:
        yield ok(subject, ", ".join(names))


def _gpu_model(profile: Profile) -> Iterator[Line]:
    """Say whether the plugin takes the type of GPU; it refuses others at each submission."""
    model = profile.resource("gpu_model")
    if model and not re.fullmatch(r"[A-Za-z0-9_.]+", model):
        found = f"{model}; Snakemake's plugin takes letters, digits, _ and . only"
        fix = f'for train gpu: 0 and slurm_extra: "--gpus-per-node={model}:1" instead'
        yield bad("gpu_model", found, f"{fix}{_in(profile)}")
