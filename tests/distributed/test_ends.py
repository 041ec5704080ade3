import json
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


def test_a_killed_torchrun_leaves_no_rank(
    data: Path, tmp_path: Path, launches: list[Launch]
) -> None:
    """SIGKILL of torchrun alone: its ranks are gone within five seconds (story 20)."""
    launch = Launch(CONFIG, data, tmp_path / "run")
    launches.append(launch)
    launch.wait_until_it_trains()
    launch.process.kill()
    launch.end(5)


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
