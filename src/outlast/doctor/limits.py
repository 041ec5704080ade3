"""What a training run asks for, against what the partition can give."""

import re
from collections.abc import Iterator, Mapping

from outlast.doctor.lines import Line, bad, note, ok
from outlast.doctor.nodes import Node, nodes_of, number_in
from outlast.doctor.profile import Profile
from outlast.doctor.programs import ask
from outlast.doctor.submission import asks_for_gpus, gpu_options, placing_options
from outlast.sections import Config


def time_line(name: str, partition: Mapping[str, str], config: Config, profile: Profile) -> Line:
    """Compare the minutes of each attempt with the partition's limit."""
    subject, limit = f"resources.runtime on {name}", _minutes(partition.get("MaxTime", ""))
    minutes, shown = config.resources.runtime, partition.get("MaxTime", "unknown")
    if limit is None:
        return ok(subject, f"{minutes} min, without a limit (MaxTime={shown})")
    attempts = _attempts(profile)
    too_long = _first_above(limit, [config.resources.of_attempt(n)[0] for n in attempts])
    waits = "such a job is refused or waits for ever"
    if too_long == 1:
        fix = f"resources.runtime: {limit} or less, or another slurm_partition"
        return bad(subject, f"{minutes} min, and MaxTime is {shown}; {waits}", fix)
    if too_long:
        found = f"from attempt {too_long} on (runtime_grows) above MaxTime {shown}; {waits}"
        fix = f"resources.runtime_grows: false, or retries: {too_long - 2} in {profile.path}"
        return bad(subject, found, fix)
    return ok(subject, f"{minutes} min, and MaxTime is {shown}")


def node_lines(
    name: str, partition: Mapping[str, str], config: Config, profile: Profile
) -> Iterator[Line]:
    """Compare what a run asks of its nodes with those of the partition."""
    nodes, subject = nodes_of(name), f"nodes of {name}"
    if not nodes:
        yield bad(subject, "there are none", "another slurm_partition")
        return
    model, launch, asked = profile.resource("gpu_model"), config.launch, config.resources
    cpus = min(max(node.cpus for node in nodes), _limit(partition, "MaxCPUsPerNode"))
    mem_mb = min(max(node.mem_mb for node in nodes), _limit(partition, "MaxMemPerNode"))
    gpus = max(node.gpus_of(model) for node in nodes)
    problems = list(_above(config, cpus, gpus, model))
    if launch.device == "cuda" and not asked.gpus and not asks_for_gpus(profile):
        found = "0, and launch.device is cuda: no attempt would find a GPU"
        problems.append(("resources.gpus", found, f"resources.gpus: {launch.processes}"))
    attempts = _attempts(profile)
    if at := _first_above(mem_mb, [asked.of_attempt(n)[1] for n in attempts]):
        grown = f" {at} times as many in attempt {at} (mem_grows)," if at > 1 else ""
        found = f"{asked.mem_mb} MB,{grown} and the largest node has {mem_mb} MB"
        problems.append(("resources.mem_mb", found, f"at most {mem_mb // at}"))
    for key, found, fix in problems:
        yield bad(f"{key} on {name}", found, f"{fix}, or another slurm_partition")
    if problems:
        return
    threads = launch.processes * launch.threads
    fitting = [
        node
        for node in nodes
        if node.cpus >= threads
        and node.mem_mb >= asked.mem_mb
        and node.gpus_of(model) >= asked.gpus
    ]
    yield _enough(subject, fitting, min(len(fitting), _limit(partition, "MaxNodes")), config)


def _above(config: Config, cpus: int, gpus: int, model: str) -> Iterator[tuple[str, str, str]]:
    """Yield key, problem and fix of what no node has."""
    launch, asked = config.launch, config.resources
    if (threads := launch.processes * launch.threads) > cpus:
        found = f"{launch.processes} x {launch.threads} = {threads} CPUs, and a node gives {cpus}"
        yield "launch.processes x threads", found, f"{cpus} or less"
    if asked.gpus > gpus:
        kind = f" of gpu_model {model}" if model else ""
        found = f"{asked.gpus} on each node, and no node has more than {gpus}{kind}"
        fix = f"resources.gpus: {gpus} or less" if gpus else "a partition with GPUs"
        yield "resources.gpus", found, "another gpu_model (sinfo -o %G)" if model else fix


def _enough(subject: str, fitting: list[Node], number: int, config: Config) -> Line:
    needed, up = config.launch.nodes, sum(node.is_up for node in fitting)
    if number < needed:
        found = f"{number} for one job have what launch and resources ask for, and"
        return bad(subject, f"{found} launch.nodes is {needed}", f"launch.nodes: {number} or less")
    if up < needed:
        found = f"{up} of {len(fitting)} that fit are up now, and launch.nodes is {needed}"
        return note(subject, found, "jobs wait until more are (sinfo --list-reasons says why)")
    return ok(subject, f"{len(fitting)} have what launch and resources ask for, {up} are up")


def submission_line(partition: str, config: Config, profile: Profile) -> Line:
    """Ask SLURM whether it would take a training run. Nothing is submitted."""
    launch, asked = config.launch, config.resources
    options = [
        *placing_options(profile, partition),
        *gpu_options(profile, asked.gpus * launch.nodes),
        f"--nodes={launch.nodes}",
        f"--ntasks={launch.nodes}",
        f"--cpus-per-task={launch.processes * launch.threads}",
        f"--mem={asked.mem_mb}",
        f"--time={asked.runtime}",
    ]
    reply = ask("sbatch", "--test-only", *options, "--wrap=true")
    if not reply.is_good:
        fix = "change what it asks for (launch, resources), or the partition and account"
        return bad("a training run", f"sbatch --test-only {' '.join(options)}: {reply.error}", fix)
    start = re.search(r"to start at (\S+)", reply.error + reply.output)
    when = f", perhaps at {start[1].replace('T', ' ')}" if start else ""
    return ok("a training run", f"SLURM would take it{when}")


def _limit(partition: Mapping[str, str], key: str) -> int:
    return number_in(partition.get(key, "")) or 2**62


def _attempts(profile: Profile) -> range:
    return range(1, (profile.number("retries", "restart-times", default=0) or 0) + 2)


def _first_above(limit: int, values: list[int]) -> int | None:
    """Return the first attempt whose value is above the limit."""
    return next((attempt for attempt, value in enumerate(values, 1) if value > limit), None)


def _minutes(text: str) -> int | None:
    """Return the minutes of ``days-hours:minutes:seconds``; None without a limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return (days * 24 + hours) * 60 + minutes
