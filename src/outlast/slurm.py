"""What SLURM knows of a job, asked with `squeue`. Where SLURM is not, nothing is known."""

import contextlib
import os
import subprocess
import time

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


def end_of(job: str) -> float | None:
    """Return when a job will reach its walltime, in seconds since 1970; None if not known."""
    asked = _squeue(job, "%e")
    if asked is None or asked.returncode != 0:
        return None
    with contextlib.suppress(ValueError, OverflowError):  # "NONE", "Unknown"
        return time.mktime(time.strptime(asked.stdout.strip(), "%Y-%m-%dT%H:%M:%S"))
    return None


def _squeue(job: str, form: str) -> "subprocess.CompletedProcess[str] | None":
    command = ["squeue", "--noheader", "--jobs", job, "--format", form]
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
