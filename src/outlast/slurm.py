"""What SLURM knows of a job, asked with `squeue`. Where SLURM is not, nothing is known."""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence

TIMEOUT_S = 10


def own_job() -> str | None:
    """Return the id of the job that this process belongs to."""
    return os.environ.get("SLURM_JOB_ID")


def own_cluster() -> str | None:
    """Return the name of the cluster that this process runs on."""
    return os.environ.get("SLURM_CLUSTER_NAME")


def has_ended(job: str) -> bool:
    """Tell whether SLURM says that a job runs no more; False where it does not answer."""
    asked = _squeue(job, "%T")
    if asked is None:
        return False
    if asked.returncode != 0:
        return "Invalid job id" in asked.stderr
    return not asked.stdout.strip()


def lost_jobs(jobs: Sequence[str]) -> dict[str, str]:
    """Return those of our jobs whose end is none that Snakemake knows, each with the reason."""
    asked = _run(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T"])
    if asked is None or asked.returncode != 0:
        return {}  # slurmctld is away, and will be back
    states = dict(line.partition("|")[::2] for line in asked.stdout.split())
    reasons = {job: "SLURM knows nothing of it any more" for job in jobs if job not in states}
    # one that SLURM starts again is PENDING
    preempted = [job for job in jobs if states.get(job) == "PREEMPTED"]
    return reasons | dict.fromkeys(preempted, "it was preempted, and SLURM does not start it again")


def end_of(job: str) -> float | None:
    """Return when a job will reach its walltime, in seconds since 1970; None if not known."""
    asked = _squeue(job, "%e")
    if asked is None or asked.returncode != 0:
        return None
    with contextlib.suppress(ValueError, OverflowError):  # "NONE", "Unknown"
        return time.mktime(time.strptime(asked.stdout.strip(), "%Y-%m-%dT%H:%M:%S"))
    return None


def _squeue(job: str, form: str) -> "subprocess.CompletedProcess[str] | None":
    return _run(["squeue", "--noheader", "--jobs", job, "--format", form])


def _run(command: list[str]) -> "subprocess.CompletedProcess[str] | None":
    # the form of times is the user's to choose, and `relative` is none that can be read
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard"}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
