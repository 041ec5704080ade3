"""What the answers of the job mean for a night of training."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlast.doctor.lines import Line, bad, note, ok
from outlast.doctor.profile import Profile

CLOCK_S = 60.0
LATENCY_SHARE = 0.5  # of latency-wait; the file system is slower at night, when all write


@dataclass(frozen=True)
class Visit:
    """What the job has answered, and when.

    Attributes:
        answer: Of the node.
        echo: When it saw our word, and wrote back (its clock); None if it did not.
        step: What srun said there; None if it never ended.
        torch: What it said of torch; None if it had no time to.
        said: When our word was written (our clock).
        heard: When the echo was seen (our clock).
        waited_s: Seconds in the queue.
        token: That we had written.
        gpus: That we had asked for.
        minutes: That the job had.
    """

    answer: Any
    echo: Any
    step: Any
    torch: Any
    said: float
    heard: float
    waited_s: float
    token: str
    gpus: int
    minutes: int


def verdicts(visit: Visit, own_version: str, profile: Profile) -> Iterator[Line]:
    """Judge each answer."""
    answer = visit.answer
    found = f"ran on {answer['host']} after {visit.waited_s:.0f} s, Python {answer['python']}"
    yield ok("job", found)
    yield from _file_system(visit, profile)
    yield _outlast(visit, own_version)
    if answer["torchrun"] is None and "conda" not in str(profile.get("software-deployment-method")):
        found = "is not on the PATH of a job, and the rule calls it by name"
        yield bad("torchrun", found, "activate the environment of outlast before snakemake")
    yield _deadline(visit)
    if visit.step is None or visit.step["error"]:
        said = visit.step["error"] if visit.step else "nothing, and does not end"
        found = f"in a job, with the variables that Snakemake's plugin leaves it, it says: {said}"
        fix = (
            "ask the administrators: /etc/slurm/slurm.conf on the nodes, if only SLURM_CONF has it"
        )
        yield bad("srun", found, fix)
    yield _torch(visit)


def _file_system(visit: Visit, profile: Profile) -> Iterator[Line]:
    host = visit.answer["host"]
    if visit.answer["token"] != visit.token:
        found = f"a file that was written here is not seen on {host}"
        yield bad("results/", found, "call outlast in a folder that all nodes share")
        return
    if visit.echo is None:
        found = f"seen from both sides, but {host} did not see a second file in time"
        yield note("results/", found, "ask for a file system that shows new files within seconds")
        return
    # as between two clocks on a network: there and back, less the time that the other one took
    there_s, back_s = visit.echo["heard"] - visit.said, visit.heard - visit.echo["written"]
    delay_s, ahead_s = max((there_s + back_s) / 2, 0.0), (there_s - back_s) / 2
    latency_s = profile.number("latency-wait", "output-wait", default=5) or 0
    free = f"{visit.answer['free_bytes'] / 1e9:.1f} GB free there"
    found = f"the same folder on {host}; a new file is seen after {delay_s:.1f} s; {free}"
    if delay_s > LATENCY_SHARE * latency_s:
        fix = f"latency-wait: {max(60, round(4 * delay_s))} in {profile.path}"
        yield bad("results/", f"{found}, and latency-wait is {latency_s}", fix)
    else:
        yield ok("results/", found)
    if abs(ahead_s) > CLOCK_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        found = f"{host} is {abs(ahead_s):.0f} s {way} this machine; Snakemake compares times"
        yield note("clock", found, "tell the administrators")


def _outlast(visit: Visit, own_version: str) -> Line:
    there, file = visit.answer["version"], visit.answer["file"]
    if there != own_version:
        found = f"{there} in the job ({file}), {own_version} here"
        return bad("outlast", found, f"let {sys.prefix} be the same on all nodes")
    return ok("outlast", f"{there} in the job, as here")


def _deadline(visit: Visit) -> Line:
    subject, deadline = "deadline", visit.answer["deadline"]
    host, most_s = visit.answer["host"], 60 * visit.minutes
    if deadline is None:
        found = f"squeue does not answer on {host}: a run does not know its walltime, and a kill"
        fix = "ask the administrators for squeue on the nodes; or a short checkpoint.every_seconds"
        return note(subject, f"{found} costs up to checkpoint.every_seconds", fix)
    left_s = deadline - visit.answer["clock"]
    if not 0 < left_s <= most_s + 60:
        found = f"squeue says that a job of {most_s} s ends {left_s:.0f} s after its start"
        return bad(subject, found, f"tell the administrators: the clock or time zone of {host}")
    return ok(subject, f"squeue answers on {host}: the job had {left_s:.0f} s left")


def _torch(visit: Visit) -> Line:
    found, gpus = visit.torch, visit.gpus
    if found is None:
        said = f"was not imported within the {visit.minutes} minutes of the job"
        return note("torch", said, "install outlast on a faster file system")
    if "error" in found:
        return bad("torch", f"cannot be imported in a job: {found['error']}", "reinstall torch")
    said = f"{found['version']}, imported in {found['seconds']:.0f} s"
    if gpus and not found["gpus"]:
        devices = f"CUDA_VISIBLE_DEVICES={found['devices']}"
        fix = "a torch for this CUDA driver (nvidia-smi in a job says which), in this environment"
        return bad("torch", f"{said}; it sees no GPU, and the job had one ({devices})", fix)
    return ok("torch", said + (f", {found['gpus']} GPU seen" if gpus else ""))
