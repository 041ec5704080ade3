"""All checks in their order: the cheap ones first, and the job last."""

from collections.abc import Iterator, Mapping

from outlast.doctor import cluster, limits
from outlast.doctor.lines import Line, bad, note, show
from outlast.doctor.partition import (
    default_partition,
    partition_line,
    preemption_line,
    read_partition,
)
from outlast.doctor.profile import Profile, read_profile
from outlast.doctor.programs import fields
from outlast.doctor.settings import setting_lines
from outlast.doctor.versions import version_lines
from outlast.doctor.visit import RESULTS, folder_line, job_lines
from outlast.sections import Config


def examine(config: Config, profile_name: str, wait_s: float | None) -> int:
    """Print what stands in the way of a night of training; return the exit code.

    Args:
        config: Of the experiment.
        profile_name: Of Snakemake's profile: a folder, a file or a name.
        wait_s: Seconds that the job may wait in the queue; None: no job.

    Raises:
        ConfigError: There is no such profile.
    """
    if not cluster.has_slurm():
        found = "there is no sinfo on the PATH: this is no login node of a cluster"
        fix = "log in there; or train here: snakemake --profile profiles/local"
        return 1 if show([bad("SLURM", found, fix)]) else 0
    profile = read_profile(profile_name)
    return 1 if show(_lines(config, profile, wait_s)) else 0


def _lines(config: Config, profile: Profile, wait_s: float | None) -> Iterator[Line]:
    yield from version_lines()
    yield from setting_lines(profile)
    folder = folder_line(RESULTS)
    yield folder
    programs = list(cluster.program_lines())
    yield from programs
    if any(line.word == "BAD" for line in programs):
        return  # what follows would only say so again
    yield cluster.account_line(profile)
    settings = cluster.read_settings()
    yield cluster.memory_line(settings, profile)
    yield cluster.kill_line(settings)
    of_training = profile.resource("slurm_partition") or default_partition()
    if not of_training:
        fix = f"slurm_partition in {profile.path}: one of those that sinfo shows"
        yield bad("partition", "none in the profile, and the cluster has no default one", fix)
        return
    yield from _partitions(of_training, config, profile, settings)
    yield limits.submission_line(of_training, config, profile)
    if wait_s is None:
        yield note("job", "not sent (--no-job): what only a node can tell is not checked")
    elif folder.word != "BAD":
        yield from job_lines(of_training, config, profile, wait_s)


def _partitions(
    of_training: str, config: Config, profile: Profile, settings: Mapping[str, str]
) -> Iterator[Line]:
    """Look at the partitions of the trainings, and at the one of the other rules."""
    of_others = profile.resource("slurm_partition", rule=None) or default_partition()
    trainings = of_training.split(",")
    for name in dict.fromkeys([*trainings, *filter(None, of_others.split(","))]):
        reply = read_partition(name)
        yield partition_line(name, reply, profile)
        if not reply.is_good:
            continue
        partition = fields(reply.output)
        yield preemption_line(name, partition, settings, profile)
        yield limits.time_line(name, partition, config, profile)
        if name in trainings:
            yield from limits.node_lines(name, partition, config, profile)
