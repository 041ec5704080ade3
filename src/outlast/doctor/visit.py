"""The login node's side of the job: it waits for the answers, and judges them."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outlast.doctor.job import LOG, MINUTES, MOST_MB, Job, RefusedError, submitted, temporary_folder
from outlast.doctor.letters import ANSWER, ECHO, HEARD, STEP, TOKEN, TORCH, wait_for
from outlast.doctor.lines import Line, bad, note, ok
from outlast.doctor.profile import Profile
from outlast.doctor.submission import gpu_options, placing_options
from outlast.doctor.verdict import Visit, verdicts
from outlast.files import read_json, write_atomically
from outlast.sections import Config

RESULTS = Path("results")
SCARCE_BYTES = 5 * 10**9
LEAST_PATIENCE_S = 20  # for what an ended job has written


def folder_line(results: Path) -> Line:
    """Say whether results/ can be written to, and how much."""
    subject, fix = f"{results}/", "make room, or call outlast in a folder that is yours"
    try:
        with temporary_folder(results) as folder:
            write_atomically(folder / "trial", b"x" * 2**20)
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return bad(subject, f"cannot be written to: {error.strerror}", fix)
    found = f"writable, {free / 1e9:.1f} GB free (a quota may be lower)"
    return note(subject, found, fix) if free < SCARCE_BYTES else ok(subject, found)


def job_lines(partition: str, config: Config, profile: Profile, wait_s: float) -> list[Line]:
    """Send a job to a node, and return what it has found.

    Args:
        partition: Its partition; empty: the default one.
        config: Of the experiment.
        profile: Of Snakemake.
        wait_s: Seconds that the job may wait in the queue.
    """
    gpus = min(config.resources.gpus, 1)
    options = [
        *placing_options(profile, partition),
        *gpu_options(profile, gpus),
        f"--mem={min(config.resources.mem_mb, MOST_MB)}",
    ]
    latency_s = profile.number("latency-wait", "output-wait", default=5) or 0
    try:
        with temporary_folder(RESULTS) as folder, submitted(folder, options) as job:
            where = f"on {partition}" if partition else "on the default partition"
            print(
                f"      (job {job.number} {where}; it may wait {wait_s:.0f} s; Ctrl-C ends it)",
                file=sys.stderr,
                flush=True,
            )
            talk = _Talk(folder, job, wait_s, max(latency_s, LEAST_PATIENCE_S))
            return _converse(talk, gpus, profile)
    except RefusedError as error:
        fix = "slurm_partition, slurm_account in the profile; resources.gpus of the experiment"
        return [bad("job", f"sbatch {' '.join(options)}: {error}", fix)]


@dataclass(frozen=True)
class _Talk:
    """One job, and how long its answers are waited for."""

    folder: Path
    job: Job
    wait_s: float
    patience_s: float

    def is_hopeless(self) -> bool:
        self.job.look()
        if self.job.is_waiting:
            return self.job.seconds > self.wait_s
        # SLURM may be silent all the time
        longest = self.wait_s + 60 * MINUTES + 60 + self.patience_s
        return self.job.ended_s > self.patience_s or self.job.seconds > longest

    def hear(self, name: str) -> tuple[Any, float]:
        """Return what a file of the job says, and when it was seen; None if it never came."""
        path = self.folder / name
        return (read_json(path), time.time()) if wait_for(path, self.is_hopeless) else (None, 0.0)


def _converse(talk: _Talk, gpus: int, profile: Profile) -> list[Line]:
    answer, _ = talk.hear(ANSWER)
    if answer is None:
        return [_silent(talk, profile)]
    said = time.time()
    (talk.folder / HEARD).touch()
    echo, heard = talk.hear(ECHO)
    step, _ = talk.hear(STEP)
    torch, _ = talk.hear(TORCH)
    visit = Visit(
        answer=answer,
        echo=echo,
        step=step,
        torch=torch,
        said=said,
        heard=heard,
        waited_s=talk.job.started_after,
        token=(talk.folder / TOKEN).read_text(),
        gpus=gpus,
        minutes=MINUTES,
    )
    return list(verdicts(visit, version("outlast"), profile))


def _silent(talk: _Talk, profile: Profile) -> Line:
    """Say why there was no answer."""
    job = talk.job
    if job.is_waiting:
        found = f"has not started within {talk.wait_s:.0f} s ({job.state}, {job.reason}); cancelled"
        return note("job", found, "--wait 3600 waits longer, --no-job does without")
    ending, log = job.ending(), talk.folder / LOG
    how = ", ".join(
        f"{key} {ending[key]}" for key in ("JobState", "Reason", "ExitCode") if key in ending
    )
    node = ending.get("BatchHost", "its node")
    if log.exists() and (said := _tail(log.read_text(errors="replace").splitlines())):
        return bad("job", f"failed on {node} ({how}): {said}", f"make {sys.executable} work there")
    found = (
        f"{RESULTS.resolve()} is not the same folder on {node}: nothing of what the job has to"
        f" write there came back within {talk.patience_s:.0f} s ({how})"
    )
    return bad(f"{RESULTS}/", found, "call outlast in a folder that all nodes share")


def _tail(lines: Sequence[str]) -> str:
    return " / ".join(line.strip() for line in lines[-3:] if line.strip())
