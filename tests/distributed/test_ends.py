import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launching import TORCHRUN, Launch

NETWORK = Path(__file__).with_name("slow_network.py")
CONFIG = {
    "data": {"source": "iris"},
    "model": {"network": f"{NETWORK}:SlowNet"},
    "training": {"epochs": 1000, "batch_size": 8, "early_stopping_patience": 0},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set, prepared."""
    folder = tmp_path_factory.mktemp("iris") / "data"
    command = [sys.executable, "-m", "outlast", "prepare", "--config", json.dumps(CONFIG)]
    subprocess.run([*command, "--out", folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    """Launches that are cleaned up whatever happens."""
    started: list[Launch] = []
    yield started
    for launch in started:
        launch.clean_up()


def test_an_error_of_one_rank_ends_all(data: Path, tmp_path: Path, launches: list[Launch]) -> None:
    """Rank 1 alone cannot build its network: all end within seconds, and one message says why."""
    launch = Launch(CONFIG, data, tmp_path / "run", TROUBLED_RANK="1")
    launches.append(launch)
    output = launch.end(40)
    assert launch.process.returncode == 1
    assert output.count("error: model.network:") == 1, output
    assert "this rank cannot" in output
    assert "Traceback" not in output
    assert "ended with exit code 1" in output


def with_network(name: str) -> dict[str, Any]:
    """The config of another network."""
    return CONFIG | {"model": {"network": f"{NETWORK}:{name}"}}


def test_ranks_whose_networks_differ_in_form_are_refused(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """Layers in the order of a set: the gradients of one would be added to those of another."""
    launch = Launch(with_network("Unlike"), data, tmp_path / "run")
    launches.append(launch)
    output = launch.end(40)
    assert launch.process.returncode == 1
    assert "error: model.network: the ranks have built it in different forms" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Moved", "its frozen parameter centre"),
        ("MovedToo", "its parameter centre"),
        ("ActNorm", "its parameter shift"),
        ("Extra", "its get_extra_state()"),
    ],
)
def test_what_each_rank_moves_for_itself_is_refused(
    data: Path, tmp_path: Path, launches: list[Launch], name: str, what: str
) -> None:
    """A state would hold that of rank 0 alone: no state is written, and the error says so."""
    launch = Launch(with_network(name), data, tmp_path / "run")
    launches.append(launch)
    output = launch.end(40)
    assert launch.process.returncode == 1
    assert f"error: model.network: {what} has become another on each rank" in output, output
    assert not (tmp_path / "run" / "model_resume.pt").exists()
    assert "Traceback" not in output


def test_a_complete_run_is_not_aborted_at_its_exit(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """Torch's C++ threads may still be at work then; the run is no failure for that."""
    config = with_network("Aborting") | {"training": CONFIG["training"] | {"epochs": 1}}
    launch = Launch(config, data, tmp_path / "run")
    launches.append(launch)
    output = launch.end(40)
    assert launch.process.returncode == 0, output
    assert output.count("what Python has to do at exit is done") == 2
    assert (tmp_path / "run" / "history.json").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_complete_run_does_not_wait_for_a_thread_of_the_network(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """For ever: Snakemake would see a job that runs to its walltime, and again."""
    config = with_network("NeverDone") | {"training": CONFIG["training"] | {"epochs": 1}}
    launch = Launch(config, data, tmp_path / "run")
    launches.append(launch)
    output = launch.end(90)
    assert launch.process.returncode == 0, output
    assert "what the network has started did not end within 30 s" in output


def test_a_child_that_the_network_forks_touches_nothing_of_the_run(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """It leaves, neither waits for a thread that it does not have nor gives the folder free."""
    config = with_network("Forking") | {"training": CONFIG["training"] | {"epochs": 1}}
    config["checkpoint"] = {"every_seconds": 0.001}  # a write is always on its way
    launch = Launch(config, data, tmp_path / "run")
    launches.append(launch)
    output = launch.end(60)
    assert launch.process.returncode == 0, output
    assert "SystemExit" not in (tmp_path / "run" / "attempts.jsonl").read_text()


def test_a_signal_does_not_hit_what_the_network_has_started(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """Its helpers may have no time to lose: the state is saved when they are done."""
    launch = Launch(with_network("Helped"), data, tmp_path / "run")
    launches.append(launch)
    deadline = time.monotonic() + 60
    status = tmp_path / "run" / "status.json"
    while not status.exists() or '"from_epoch": 0' not in status.read_text():
        assert time.monotonic() < deadline, launch.log.read_text()
        time.sleep(0.05)
    time.sleep(3)
    launch.find_ranks()
    launch.process.terminate()
    output = launch.end(20)
    assert "the state is saved" in output, output
    assert "CalledProcessError" not in output


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-"])
def test_a_closed_output_does_not_turn_a_failure_into_a_success(
    tmp_path: Path, redirection: str
) -> None:
    """A job started by cron, or behind a daemon."""
    line = f"{sys.executable} -m outlast inspect {tmp_path}/none.pt {redirection}"
    assert subprocess.run(["bash", "-c", line]).returncode == 1


def test_what_a_library_prints_on_a_closed_output_is_no_signal(data: Path, tmp_path: Path) -> None:
    """The way on which signals are heard would have its number: a line's end is SIGUSR1."""
    config = with_network("Printing") | {"training": CONFIG["training"] | {"epochs": 1}}
    command = [sys.executable, "-m", "outlast", "train", "--config", json.dumps(config)]
    command += ["--data", str(data), "--out", str(tmp_path / "run")]
    line = f"{shlex.join(command)} <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", line], env={**os.environ, "RANK": "0"}, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "run" / "history.json").exists()


def wait_for_zombie(process: psutil.Process) -> None:
    """Wait until a process has ended that its parent has not looked at yet."""
    deadline = time.monotonic() + 30
    while process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("noticed", ["at once", "after the other has ended"])
def test_a_killed_rank_ends_all(
    data: Path, tmp_path: Path, launches: list[Launch], noticed: str
) -> None:
    """SIGKILL of rank 1: the other does not hang, and the line names the rank (story 28)."""
    launch = Launch(CONFIG, data, tmp_path / "run")
    launches.append(launch)
    launch.wait_until_it_trains()
    if noticed == "after the other has ended":
        launch.process.send_signal(signal.SIGSTOP)
    launch.ranks[1].kill()
    if noticed == "after the other has ended":
        wait_for_zombie(launch.ranks[0])
        launch.process.send_signal(signal.SIGCONT)
    output = launch.end(40)
    assert launch.process.returncode == 1
    assert "torchrun: rank 1 was killed by SIGKILL" in output, output
    assert "error: another rank has ended, and this one with it" in output
    (attempt,) = (tmp_path / "run" / "attempts.jsonl").read_text().splitlines()
    assert json.loads(attempt)["reason"] == "another rank has ended, and this one with it"


def test_a_killed_torchrun_leaves_no_rank(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """SIGKILL of torchrun alone: its ranks are gone within five seconds (story 20)."""
    launch = Launch(CONFIG, data, tmp_path / "run")
    launches.append(launch)
    launch.wait_until_it_trains()
    launch.process.kill()
    launch.end(5)


WRAPPER = '"$@"; echo "rank has ended with $?"'


def test_a_killed_torchrun_leaves_no_rank_behind_a_wrapper(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """A profiler, or a shell with a second command: the parent of a rank is not torchrun."""
    launch = Launch(CONFIG, data, tmp_path / "run", wrapper=WRAPPER)
    launches.append(launch)
    launch.wait_until_it_trains()
    launch.process.kill()
    output = launch.end(15)
    # by whoever looks first; the other may hear of him before
    assert f"ends: its torchrun (process {launch.process.pid}) is gone" in output, output


@pytest.mark.parametrize("to_all", [False, True])
def test_a_signal_saves_behind_a_wrapper(
    data: Path, tmp_path: Path, launches: list[Launch], to_all: bool
) -> None:
    """The wrapper itself dies of it, and torchrun waits for the ranks all the same.

    Also where it has died before torchrun has looked: SLURM signals all processes of a step.
    """
    fault = "point=copied do=sleep for=4"
    launch = Launch(CONFIG, data, tmp_path / "run", wrapper=WRAPPER, OUTLAST_FAULT=fault)
    launches.append(launch)
    launch.wait_until_it_trains()
    torchrun = psutil.Process(launch.process.pid)
    below = torchrun.children(recursive=True) if to_all else []
    if to_all:
        torchrun.suspend()  # it shall look last
    for process in [*below, torchrun]:
        process.terminate()
    torchrun.resume()
    output = launch.end(20)
    assert "SIGTERM: interrupted in epoch" in output, output
    assert "the state is saved" in output, output


def test_a_rank_whose_torchrun_is_not_above_it_says_so(data: Path, tmp_path: Path) -> None:
    """It ended before the rank could look, or is hidden by a container: no rank dies in silence."""
    command = [sys.executable, "-m", "outlast", "train", "--config", json.dumps(CONFIG)]
    command += ["--data", str(data), "--out", str(tmp_path / "run")]
    gone = subprocess.Popen(["true"])
    gone.wait()
    environment = {"TORCHELASTIC_RUN_ID": "1", "OUTLAST_TORCHRUN_PID": str(gone.pid), "RANK": "1"}
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert f"rank 1 ends: its torchrun (process {gone.pid}) is gone" in done.stdout


@pytest.mark.parametrize("sent", [[], [signal.SIGINT]], ids=["asked by nobody", "Ctrl-C before"])
def test_a_parent_that_dies_is_a_request_and_never_the_second(
    data: Path, tmp_path: Path, sent: list[signal.Signals]
) -> None:
    """Snakemake dies, two seconds after a Ctrl-C or without one: the ranks save and leave."""
    log, run = tmp_path / "log", tmp_path / "run"
    command = [*TORCHRUN, "--nproc-per-node", "1", "-m", "outlast", "train", "--device", "cpu"]
    command += ["--config", json.dumps(CONFIG), "--data", str(data), "--out", str(run)]
    line = f"OUTLAST_END_WITH_PARENT=$$ {shlex.join(command)} > {shlex.quote(str(log))} 2>&1"
    environment = {**os.environ, "OUTLAST_FAULT": "point=batch at=20 do=sleep for=6"}
    parent = subprocess.Popen(["bash", "-c", f"{line}; true"], env=environment)
    deadline = time.monotonic() + 60
    while not log.exists() or "epoch 1/" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    (torchrun,) = psutil.Process(parent.pid).children()
    for number in sent:
        torchrun.send_signal(number)
        time.sleep(2.5)
    parent.kill()
    parent.wait()
    gone, _ = psutil.wait_procs([torchrun], timeout=30)
    assert gone
    name = sent[0].name if sent else "SIGTERM"
    assert f"{name}: interrupted in epoch" in log.read_text(), log.read_text()
    assert (run / "model_resume.pt").exists()


def test_the_ranks_leave_together_after_a_loss_that_is_not_finite(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """Rank 0 finishes its write first: torchrun ends the others soon after one has left."""
    slow_disk = "point=fsync times=99 do=sleep for=2"
    config = with_network("Spoiled") | {"checkpoint": {"every_seconds": 0.001}}
    launch = Launch(config, data, tmp_path / "run", OUTLAST_FAULT=slow_disk)
    launches.append(launch)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "run").glob(".writer-*/model_resume*")):
        assert time.monotonic() < deadline, launch.log.read_text()
        time.sleep(0.01)
    launch.find_ranks()
    psutil.wait_procs([launch.ranks[1]], timeout=30)
    assert (tmp_path / "run" / "failure.json").exists(), launch.log.read_text()
    assert "is not finite" in launch.end(20)


def test_a_parent_that_is_gone_before_torchrun_looks_leaves_no_trainer(
    data: Path, tmp_path: Path
) -> None:
    """SIGKILL of Snakemake while torchrun imports torch: nothing is trained behind its back."""
    command = [*TORCHRUN, "--nproc-per-node", "1", "-m", "outlast", "train", "--device", "cpu"]
    command += ["--config", json.dumps(CONFIG), "--data", data, "--out", tmp_path / "run"]
    line = shlex.join(map(str, command))
    log = tmp_path / "log"
    # the shell in the middle ends at once, and torchrun with it, before it has started a rank
    script = f"OUTLAST_END_WITH_PARENT=$$ {line} > {shlex.quote(str(log))} 2>&1 & echo $!"
    started = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    process = psutil.Process(int(started.stdout))
    gone, _ = psutil.wait_procs([process], timeout=60)
    assert gone, log.read_text()
    assert "whoever started it is gone" in log.read_text()
    assert not (tmp_path / "run").exists()
