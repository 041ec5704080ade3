"""A real, small SLURM on this machine: munged, slurmctld and eight slurmd, as plain processes.

    python tests/slurm/cluster.py up | down | status | controller-ACTION | node-ACTION NODE

For Debian and its kin, as root: it installs the packages that are missing. Everything lies in
one folder below the temporary files; nothing listens beyond loopback. The one thing outside is
the link /etc/slurm/slurm.conf, because Snakemake's plugin unsets SLURM_CONF within a job; a file
that is there already belongs to a real cluster, and then nothing is done.
"""

import argparse
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
FOLDER = Path(os.environ.get("OUTLAST_SLURM_DIR", f"{tempfile.gettempdir()}/outlast-slurm"))
LOCK = FOLDER.with_name(f"{FOLDER.name}.lock")
CONF = FOLDER / "slurm.conf"
SYSTEM_CONF = Path("/etc/slurm/slurm.conf")
BY_HAND = FOLDER / "by-hand"
FIRST_PORT = 17817
FREEZER = Path("/sys/fs/cgroup/freezer")
MEMORY = Path("/sys/fs/cgroup/memory")
# main for most tests; nodes of brittle and cut are killed; high takes the node of low away
PARTITIONS = {"main": (1, 2, 3), "brittle": (4, 5), "cut": (6, 7), "low": (8,), "high": (8,)}
NODES = tuple(f"node{number}" for number in sorted({n for of in PARTITIONS.values() for n in of}))
GPUS = 2  # of each node; they are device files that nobody opens

TEMPLATE = Path(__file__).with_name("slurm.conf.template")


class NoClusterError(Exception):
    """Says why there can be no cluster on this machine."""


def up() -> None:
    """Start the cluster, unless it runs.

    Raises:
        NoClusterError: it may not be started here, or it does not come up; with the reason.
    """
    with _alone():
        if is_up():
            return
        _check_machine()
        _install()
        _stop()
        _configure()
        _start()


def down() -> None:
    """End all jobs and daemons, and delete everything."""
    with _alone():
        _stop()


@contextmanager
def in_use() -> Iterator[None]:
    """Have the cluster up; the last process to leave ends it, unless it was started by hand."""
    up()
    mark = FOLDER / f"user-{os.getpid()}"
    mark.touch()
    try:
        yield
    finally:
        with _alone():
            mark.unlink(missing_ok=True)
            users = [path.name.partition("-")[2] for path in FOLDER.glob("user-*")]
            if not BY_HAND.exists() and not any(psutil.pid_exists(int(pid)) for pid in users):
                _stop()


def is_up() -> bool:
    """Tell whether the cluster is there; a test may have one of its nodes down."""
    return bool(_daemon("munged") and _daemon("slurmctld")) and _succeeds("scontrol", "ping")


def node_down(node: str) -> None:
    """Kill a slurmd and every process of its jobs, as a power cut does."""
    jobs = _output("squeue", "--noheader", "--format=%i", f"--nodelist={node}").split()
    for process in [_daemon(node), *_processes_of_jobs(node, jobs)]:
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def node_cut_off(node: str) -> None:
    """Kill a slurmd alone: SLURM takes the node for dead, and its jobs live on."""
    if process := _daemon(node):
        process.kill()


def node_up(node: str) -> None:
    """Start a slurmd again, and wait until its node takes jobs."""
    _spawn(node, "slurmd", "-D", "-N", node, "-f", CONF)
    _wait(lambda: _are_nodes_idle(node), f"{node} does not come back", node)


def controller_down() -> None:
    """Kill slurmctld; the jobs and their nodes know nothing of it."""
    if process := _daemon("slurmctld"):
        process.kill()
        process.wait(10)


def controller_up() -> None:
    """Start slurmctld again, and wait until it answers."""
    _spawn("slurmctld", "slurmctld", "-D", "-f", CONF)
    _wait(lambda: _succeeds("scontrol", "ping"), "slurmctld is silent", "slurmctld")


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise NoClusterError("a cluster of one's own needs root")
    if shutil.which("apt-get") is None and _missing():
        raise NoClusterError("SLURM is not installed, and only apt-get is known here to install it")
    if SYSTEM_CONF.exists() and not _is_ours(SYSTEM_CONF):
        raise NoClusterError(f"{SYSTEM_CONF} is there: this machine belongs to a cluster")


def _is_ours(path: Path) -> bool:
    return path.is_symlink() and path.readlink() == CONF


def _missing() -> list[str]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [name for program, name in PACKAGES.items() if not shutil.which(program, path=path)]


def _install() -> None:
    packages = _missing()
    if not packages:
        return
    # else Debian starts services of its own
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        options = ("--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")
        for command in (["update"], ["install", *options, *packages]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            done = subprocess.run(
                ["apt-get", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip()[-500:]
                raise NoClusterError(f"apt-get cannot install {', '.join(packages)}: {said}")
    finally:
        if is_ours:
            policy.unlink()


def _configure() -> None:
    FOLDER.mkdir(mode=0o755)
    for name in ("log", "state", "spool", "gpus"):
        (FOLDER / name).mkdir()
    key = FOLDER / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    tracking = "cgroup" if _may_make_groups(FREEZER) else "linuxproc"
    limits_memory = tracking == "cgroup" and _may_make_groups(MEMORY)
    port = _free_ports(len(NODES) + 1)
    names = {part: ",".join(f"node{n}" for n in of) for part, of in PARTITIONS.items()}
    host = socket.gethostname().partition(".")[0]
    nodes = (
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + number}"
        f" CPUs=8 RealMemory=64000 Gres=gpu:a100:{GPUS} State=UNKNOWN"
        for number, node in enumerate(NODES, 1)
    )
    CONF.write_text(
        TEMPLATE.read_text().format(
            host=host,
            port=port,
            folder=FOLDER,
            tracking=tracking,
            task_plugin="cgroup" if limits_memory else "none",
            # without control groups the memory is only looked at, once a second
            memory_limit="" if limits_memory else "JobAcctGatherParams=OverMemoryKill",
            nodes="\n".join(nodes),
            **names,
        )
    )
    (FOLDER / "cgroup.conf").write_text(
        f"CgroupPlugin=cgroup/v1\nConstrainRAMSpace={'yes' if limits_memory else 'no'}\n"
    )
    lines = []
    for number in range(GPUS):
        device = FOLDER / f"gpus/gpu{number}"
        with suppress(OSError):
            os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))  # another /dev/null
        device.touch()
        lines.append(f"NodeName={','.join(NODES)} Name=gpu Type=a100 File={device}\n")
    (FOLDER / "gres.conf").write_text("".join(lines))
    SYSTEM_CONF.parent.mkdir(parents=True, exist_ok=True)
    SYSTEM_CONF.unlink(missing_ok=True)
    SYSTEM_CONF.symlink_to(CONF)


def _may_make_groups(hierarchy: Path) -> bool:
    probe = hierarchy / f"outlast-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _free_ports(number: int) -> int:
    for first in range(FIRST_PORT, 30000, 50):
        with suppress(OSError):
            for port in range(first, first + number):
                with socket.socket() as trial:
                    trial.bind(("127.0.0.1", port))
            return first
    raise NoClusterError("no free ports")


def _start() -> None:
    key, files = FOLDER / "munge.key", FOLDER
    _spawn(
        *("munged", "munged", "--foreground", "--force", f"--socket={files}/munge.socket"),
        *(f"--key-file={key}", f"--pid-file={files}/munged.own", f"--seed-file={files}/seed"),
        f"--log-file={files}/log/munged.log",
    )
    socket_of = (f"--socket={files}/munge.socket",)
    _wait(lambda: _succeeds("munge", "--no-input", *socket_of), "munged is silent", "munged")
    controller_up()
    for node in NODES:
        _spawn(node, "slurmd", "-D", "-N", node, "-f", CONF)
    _wait(_are_nodes_idle, "the nodes do not come up", "slurmctld")


def _stop() -> None:
    _end_jobs()
    for name in (*NODES, "slurmctld", "munged"):
        if process := _daemon(name):
            process.terminate()
    deadline = time.monotonic() + 15
    for name in (*NODES, "slurmctld", "munged"):
        while (process := _daemon(name)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if process:
            process.kill()
    if _is_ours(SYSTEM_CONF):
        SYSTEM_CONF.unlink()
    shutil.rmtree(FOLDER, ignore_errors=True)


def _end_jobs() -> None:
    if _daemon("slurmctld"):  # else its commands would wait for it
        for name in PARTITIONS:
            _succeeds("scancel", "--full", f"--partition={name}")
        deadline = time.monotonic() + 15
        while _output("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.3)
    for node in NODES:
        for process in _processes_of_jobs(node, []):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _spawn(name: str, *command: object) -> None:
    """Start a daemon that outlives this process, with nothing of a job we may be in ourselves."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH"))
    }
    environment |= {"SLURM_CONF": str(CONF), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    words = list(map(str, command))
    program = shutil.which(words[0], path=environment["PATH"])
    assert program is not None, f"{words[0]} is installed"
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # not Popen, which wants to see its process end
    pid = os.posix_spawn(
        program,
        words,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, FOLDER / f"log/{name}.out", append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    started = psutil.Process(pid).create_time()
    (FOLDER / f"{name}.started").write_text(f"{pid} {started}")


def _daemon(name: str) -> psutil.Process | None:
    """Return the running daemon of that name: the process itself, none of a reused id."""
    with suppress(OSError, ValueError, psutil.NoSuchProcess):
        pid, started = (FOLDER / f"{name}.started").read_text().split()
        process = psutil.Process(int(pid))
        is_it = abs(process.create_time() - float(started)) < 0.1
        if is_it and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _processes_of_jobs(node: str, jobs: list[str]) -> list[psutil.Process]:
    """Return the processes of the jobs on a node; first those that tell slurmctld of their end."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline())
            if title.startswith("slurmstepd: ["):  # [17.batch]; its title lies over its environment
                if title.partition("[")[2].partition(".")[0] in jobs:
                    found.append(process)
                continue
            environment = process.environ()
            is_ours = environment.get("SLURM_CONF") == str(CONF)
            if is_ours and environment.get("SLURMD_NODENAME") == node:
                found.append(process)
    return sorted(found, key=lambda process: not process.name().startswith("slurmstepd"))


def _are_nodes_idle(*nodes: str) -> bool:
    chosen = nodes or NODES
    states = _output(
        "sinfo", "--noheader", "--Node", "--format=%N %t", f"--nodes={','.join(chosen)}"
    )
    working = [line for line in states.splitlines() if line.split()[1] in ("idle", "mix", "alloc")]
    return {line.split()[0] for line in working} == set(chosen)


def _wait(is_ready: Callable[[], bool], complaint: str, name: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > deadline or _daemon(name) is None:
            logs = sorted((FOLDER / "log").glob(f"{name}.*"))
            tails = "".join(f"\n--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)
            raise NoClusterError(f"{complaint}{tails}")
        time.sleep(0.2)


def _succeeds(*command: str) -> bool:
    environment = {**os.environ, "SLURM_CONF": str(CONF)}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    return done.returncode == 0


def _output(*command: str) -> str:
    environment = {**os.environ, "SLURM_CONF": str(CONF)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    return done.stdout


@contextmanager
def _alone() -> Iterator[None]:
    """Keep others from starting or stopping the cluster at this moment."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, action in (("up", up), ("down", down)):
        verbs.add_parser(name, help=action.__doc__).set_defaults(action=lambda _, do=action: do())
    verbs.add_parser("status").set_defaults(action=lambda _: None)
    actions = {"node-down": node_down, "node-cut-off": node_cut_off, "node-up": node_up}
    controller = {"controller-down": controller_down, "controller-up": controller_up}
    for name, switch in controller.items():
        verbs.add_parser(name, help=switch.__doc__).set_defaults(action=lambda _, do=switch: do())
    for name, act in actions.items():
        command = verbs.add_parser(name, help=act.__doc__)
        command.add_argument("node", choices=NODES)
        command.set_defaults(action=lambda options, do=act: do(options.node))
    options = parser.parse_args()
    try:
        options.action(options)
    except NoClusterError as reason:
        print(f"no cluster: {reason}", file=sys.stderr)
        return 1
    if not _daemon("slurmctld"):
        print("the cluster is down, or its slurmctld is")
        return 0
    BY_HAND.touch()
    print(_output("sinfo", "--Node", "--long"), _output("squeue"), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
