"""What SLURM knows of a job, asked with `squeue`. Where SLURM is not, nothing is known."""

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence

TIMEOUT_S = 10
# why a job is lost
PREEMPTED = "it was preempted, and SLURM does not start it again"
FORGOTTEN = "SLURM knows nothing of it any more"
# why a job waits (squeue's %r) that nothing but its owner or an administrator can let start
STUCK = {
    "PartitionTimeLimit": "it asks for more time than its partition gives (resources.runtime)",
    "launch failed requeued held": "SLURM could not start it, and holds it",
}
# and one that may be such; nodes that are down count as missing
DOUBTFUL = {
    "PartitionConfig": "its partition may never give what it asks for (outlast doctor says more)",
    "PartitionNodeLimit": "its partition has too few nodes, or some are down (sinfo -R)",
    "job requeued in held state": "somebody has put it back and holds it (scontrol release)",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held (scontrol release)",
}
# Of these nothing of a job runs any more. Any other name, that of a later SLURM too, may be one of
# a job that runs or will again: SUSPENDED, COMPLETING, REQUEUED; REVOKED runs on another cluster.
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
# where a user has chosen another cluster for his jobs
CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")


def own_job() -> str | None:
    """Return the id of the job that this process belongs to."""
    return os.environ.get("SLURM_JOB_ID")


def own_cluster() -> str | None:
    """Return the name of the cluster that this process runs on."""
    return os.environ.get("SLURM_CLUSTER_NAME")


def has_ended(job: str) -> bool:
    """Tell whether SLURM says that a job runs no more; False where it does not answer.

    An answer without the job is none: it may be hidden from us, or slurmctld have just started.
    """
    asked = _squeue(job, "%T")
    if asked is None:
        return False
    if asked.returncode != 0:
        return "Invalid job id" in asked.stderr
    states = asked.stdout.split()
    return bool(states) and set(states) <= ENDED


def lost_jobs(jobs: Sequence[str]) -> dict[str, str]:
    """Return those of our jobs that are lost, or may be, each with the reason.

    Lost: their end is none that Snakemake knows, or they will never start.
    """
    if any(os.environ.get(name) for name in CLUSTERS):
        return {}  # sbatch has sent them to a cluster that is not asked here
    asked = _run(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%P|%r"])
    if asked is None or asked.returncode != 0:
        return {}  # slurmctld is away, and will be back
    lines = [line.split("|") for line in asked.stdout.splitlines()]
    said = {line[0]: line[1:] for line in lines if len(line) == 4}
    found = {job: _loss(*said[job]) if job in said else FORGOTTEN for job in jobs}
    return {job: loss for job, loss in found.items() if loss}


def _loss(state: str, partition: str, reason: str) -> str | None:
    if state == "PREEMPTED":  # one that SLURM starts again is PENDING
        return PREEMPTED
    if state != "PENDING" or "," in partition:  # of several, the reason is that of one
        return None
    return STUCK.get(reason) or DOUBTFUL.get(reason)


def cancel(job: str) -> None:
    """Take a job of ours out of the queue, if SLURM hears it."""
    _run(["scancel", "--quiet", job])


def end_of(job: str) -> float | None:
    """Return when a job will reach its walltime, in seconds since 1970; None if not known."""
    asked = _squeue(job, "%e")
    if asked is None or asked.returncode != 0:
        return None
    with contextlib.suppress(ValueError, OverflowError):  # "NONE", "Unknown"
        return time.mktime(time.strptime(asked.stdout.strip(), "%Y-%m-%dT%H:%M:%S"))
    return None


def _squeue(job: str, form: str) -> "subprocess.CompletedProcess[str] | None":
    return _run(["squeue", "--noheader", "--states=all", "--jobs", job, "--format", form])


def _run(command: list[str]) -> "subprocess.CompletedProcess[str] | None":
    # What a user has set for his own looks at the queue would hide jobs here: partition, states,
    # users, cluster. And `relative`, a form of times, is none that can be read.
    environment = {name: value for name, value in os.environ.items() if not _is_filter(name)}
    environment["SLURM_TIME_FORMAT"] = "standard"
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


def _is_filter(name: str) -> bool:
    return name.startswith("SQUEUE_") or name in CLUSTERS
