"""Kills under Snakemake itself: its retries go on from the rolling state, to the same bits."""

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml
from killing import assert_same, kill_tree, run_config
from snakemaking import PROFILE, snakemake, start_snakemake

CONFIG = {
    **run_config(),
    "experiment": "kills",
    "launch": {"processes": 2, "device": "cpu"},
    "checkpoint": {"every_seconds": 0.1},
}
RUN = Path("results/kills/runs/run")


def target(workdir: Path) -> tuple[object, ...]:
    """Write the experiment file; return arguments that ask for the outputs of its one run."""
    (workdir / "kills.yaml").write_text(yaml.safe_dump(CONFIG))
    return (RUN / "history.json", "--profile", PROFILE, "--configfile", "kills.yaml")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run under Snakemake that nothing disturbs."""
    workdir = tmp_path_factory.mktemp("undisturbed")
    snakemake(workdir, *target(workdir))
    return workdir / RUN


def wait_for(workdir: Path, process: "subprocess.Popen[str]", text: str, times: int) -> None:
    """Wait until the run's own log says ``text`` for the ``times``-th time."""
    log, deadline = workdir / RUN / "events.log", time.monotonic() + 120
    while not log.exists() or log.read_text().count(text) < times:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "never seen"
        time.sleep(0.01)


def torchrun_below(process: "subprocess.Popen[str]") -> psutil.Process:
    """Return the torchrun that Snakemake has started."""
    children = psutil.Process(process.pid).children(recursive=True)
    return next(child for child in children if "torchrun" in " ".join(child.cmdline()[:3]))


def test_retries_resume_after_kills_of_the_training(tmp_path: Path, undisturbed: Path) -> None:
    """The training processes are SIGKILLed twice in one invocation; Snakemake ends in success."""
    process = start_snakemake(tmp_path, *target(tmp_path))
    for times in (1, 2):
        # epoch 1 is through for the first time; then epoch 2, in the second attempt
        wait_for(tmp_path, process, f"epoch {times}/3", times=1)
        torchrun = torchrun_below(process)
        family = [torchrun, *torchrun.children(recursive=True)]
        for member in family:
            member.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert output.count("Trying to restart job") == 2, output
    events = (tmp_path / RUN / "events.log").read_text()
    assert events.count("resumed: epoch") == 2, events
    assert "resumed: epoch 1, after step 0" not in events, "not from the beginning"
    assert json.loads((tmp_path / RUN / "history.json").read_text())["attempts"] == 3
    assert_same(tmp_path / RUN, undisturbed)


def test_kill_of_snakemake_ends_the_training_and_a_restart_resumes(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Kill -9 of Snakemake alone: the training saves and leaves; unlock, run again, exact."""
    process = start_snakemake(tmp_path, *target(tmp_path))
    wait_for(tmp_path, process, "epoch 1/3", times=1)
    torchrun = torchrun_below(process)
    ranks = torchrun.children(recursive=True)
    assert len(ranks) >= 2
    process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([torchrun, *ranks], timeout=30)
    assert not alive, "a second writer would be left beside the restarted run"
    process.communicate()
    assert "the state is saved" in (tmp_path / RUN / "events.log").read_text()
    arguments = target(tmp_path)
    assert "--unlock" in snakemake(tmp_path, *arguments, check=False).stdout
    snakemake(tmp_path, *arguments, "--unlock")
    snakemake(tmp_path, *arguments, "--rerun-incomplete")
    assert_same(tmp_path / RUN, undisturbed)


def test_kill_of_everything_and_a_restart_resumes(tmp_path: Path, undisturbed: Path) -> None:
    """A machine that goes down takes all processes at once: the same."""
    process = start_snakemake(tmp_path, *target(tmp_path))
    wait_for(tmp_path, process, "epoch 2/3", times=1)
    assert kill_tree(process)
    process.communicate()
    arguments = target(tmp_path)
    snakemake(tmp_path, *arguments, "--unlock")
    snakemake(tmp_path, *arguments, "--rerun-incomplete")
    events = (tmp_path / RUN / "events.log").read_text()
    assert "resumed: epoch" in events
    assert "resumed: epoch 1," not in events
    assert_same(tmp_path / RUN, undisturbed)
