"""A partition: whether it is there, and what becomes of a preempted job."""

from collections.abc import Mapping

from outlast.doctor.lines import Line, bad, note, ok
from outlast.doctor.profile import Profile
from outlast.doctor.programs import Reply, ask, fields


def default_partition() -> str:
    """Return the name of the default partition, empty without one."""
    names = ask("sinfo", "--noheader", "--format=%P").output.split()
    return next((name.rstrip("*") for name in names if name.endswith("*")), "")


def read_partition(name: str) -> Reply:
    """Ask for the fields of a partition."""
    return ask("scontrol", "--oneliner", "show", "partition", name)


def partition_line(name: str, reply: Reply, profile: Profile) -> Line:
    """Say whether a partition is there and takes jobs."""
    subject, known = f"partition {name}", ask("sinfo", "--noheader", "--format=%R").output.split()
    fix = f"slurm_partition in {profile.path}; there are: {', '.join(dict.fromkeys(known))}"
    if not reply.is_good:
        return bad(subject, f"is not there ({reply.error or reply.output})", fix)
    state = fields(reply.output).get("State", "unknown")
    if state != "UP":
        return bad(subject, f"is {state}, and its jobs wait until it is UP", f"wait, or {fix}")
    return ok(subject, "up")


def preemption_line(
    name: str, partition: Mapping[str, str], settings: Mapping[str, str], profile: Profile
) -> Line:
    """Say what a preempted job would come to."""
    modes = set(partition.get("PreemptMode", "OFF").upper().split(","))
    subject, requeues = f"PreemptMode of {name}", profile.is_on("slurm-requeue")
    if "CANCEL" in modes:
        found = "CANCEL: each preemption of a job costs one of its retries"
        return note(subject, found, f"more retries in {profile.path}, or another partition")
    if "REQUEUE" in modes and not requeues:
        found = (
            "REQUEUE, and the profile lets SLURM start no job again: each preemption costs one of"
            " the retries"
        )
        fix = f"slurm-requeue: true instead of slurm-no-requeue: true in {profile.path}"
        return note(subject, found, fix)
    if "SUSPEND" in modes:
        return note(subject, "SUSPEND: a preempted job stands still, and goes on by itself")
    if "REQUEUE" in modes:
        return ok(subject, "REQUEUE, and slurm-requeue: true")
    if "qos" in settings.get("PreemptType", "") and not requeues:
        found = f"{', '.join(sorted(modes))}, but here the QOS decides who is preempted"
        return note(subject, found, "if yours is, slurm-requeue: true, not slurm-no-requeue")
    if requeues:
        found = "OFF, and slurm-requeue: true; it is needed only where jobs are preempted"
        return note(subject, found, f"slurm-no-requeue: true instead in {profile.path}")
    return ok(subject, "OFF")
