"""`outlast doctor` on a real SLURM: its own words are understood, and its job comes back."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemaking import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("cluster")]

PROFILE = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
EXPERIMENT: dict[str, Any] = {"data": {"source": "digits"}}
GPU: dict[str, Any] = {
    "launch": {"device": "cuda", "processes": 1},
    "resources": {"gpus": 1, "mem_mb": 2000},
}


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment, and the PATH that a user has."""
    monkeypatch.chdir(tmp_path)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", tools)
    return tmp_path


def command(config: dict[str, Any], profile: dict[str, Any], *options: str) -> list[str]:
    """Write the files of a user and return his command."""
    Path("experiment.yaml").write_text(yaml.safe_dump({**EXPERIMENT, **config}))
    Path("profile").mkdir(exist_ok=True)
    Path("profile/config.yaml").write_text(yaml.safe_dump({**PROFILE, **profile}))
    return [
        *(sys.executable, "-m", "outlast", "doctor", "experiment.yaml"),
        *("--profile", "profile", *options),
    ]


def doctor(*arguments: Any) -> tuple[int, str]:
    """Return exit code and output, unfolded."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=200)
    return done.returncode, re.sub(r"\n {8}", " ", done.stdout) + done.stderr


def own_jobs() -> list[str]:
    """Return the jobs from this folder that have not ended."""
    question = ["squeue", "--noheader", "--states=PENDING,CONFIGURING,RUNNING", "--format=%j|%Z"]
    output = subprocess.check_output(question, text=True)
    return [line for line in output.splitlines() if line.endswith(f"|{Path.cwd()}")]


def on(partition: str) -> dict[str, Any]:
    """A profile with another partition."""
    return {"default-resources": [f'slurm_partition="{partition}"']}


def test_a_good_cluster() -> None:
    """Nothing is BAD; the job has found squeue, the shared folder and torch on its node."""
    code, output = doctor({}, on("main"))
    assert code == 0, output
    for line in (
        r"ok    SLURM: sinfo, squeue, scontrol, sbatch answer",
        r"ok    MinJobAge: 300 s",
        r"note  KillWait: 5 s",
        r"ok    PreemptMode of main: OFF",
        r"ok    resources.runtime on main: 60 min, and MaxTime is 1-00:00:00",
        r"ok    nodes of main: 3 have what launch and resources ask for",
        r"ok    a training run: SLURM would take it, perhaps at 20",
        r"ok    job: ran on node\d ",
        r"ok    results/: the same folder on node\d",
        r"ok    deadline: .* the job had 1[12]\d s left",
        r"ok    torch: ",
    ):
        assert re.search(f"^{line}", output, re.MULTILINE), line
    assert not Path("results").exists()


def test_the_default_partition() -> None:
    """It is main, where the profile names none."""
    code, output = doctor({}, {}, "--no-job")
    assert (code, "ok    partition main: up" in output) == (0, True)


def test_preemption() -> None:
    """Jobs of low are preempted: slurm-requeue saves retries there."""
    code, output = doctor({}, on("low"), "--no-job")
    assert (code, "note  PreemptMode of low: REQUEUE" in output) == (0, True)
    requeue = {"slurm-requeue": True, "slurm-no-requeue": False}
    code, output = doctor({}, {**on("low"), **requeue}, "--no-job")
    assert (code, "ok    PreemptMode of low: REQUEUE" in output) == (0, True)


def test_what_the_cluster_has_not() -> None:
    """By our own arithmetic and, where that is blind, by sbatch --test-only."""
    config = {"launch": {"nodes": 4, "threads": 9}, "resources": {"runtime": 1441}}
    code, output = doctor(config, on("main"), "--no-job")
    assert code == 1
    for said in (
        "BAD   resources.runtime on main: 1441 min",
        "BAD   launch.processes x threads on main: 1 x 9 = 9 CPUs, and a node gives 8",
        "BAD   a training run: sbatch --test-only",
        "allocation failure: Requested node configuration is not available",
    ):
        assert said in output
    constraint = {"set-resources": {"train": {"constraint": "fast", "slurm_partition": "main"}}}
    code, output = doctor({}, constraint, "--no-job")
    assert (code, "Invalid feature specification" in output) == (1, True), output
    code, output = doctor({}, on("nix"), "--no-job")
    assert "BAD   partition nix: is not there (Partition nix not found)" in output
    assert "there are: main, brittle, cut, low, high" in output


def test_a_gpu_that_torch_does_not_see() -> None:
    """The GPUs of the cluster are files that nobody can compute with."""
    model = {"set-resources": {"train": {"gpu_model": "a100"}}}
    code, output = doctor(GPU, {**on("main"), **model})
    assert code == 1
    assert re.search(r"BAD   torch: .*CUDA_VISIBLE_DEVICES=\d", output), output


def test_a_folder_that_the_nodes_do_not_see() -> None:
    """Only this process has results/ on a file system in memory."""
    mount = "mkdir results && mount -t tmpfs none results && exec "
    words = command({}, {**on("main"), "latency-wait": 20})
    script = mount + " ".join(words)
    private = shutil.which("unshare") and subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True
    )
    if not private or private.returncode != 0:
        pytest.skip("no mounts of one's own on this machine")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script], capture_output=True, text=True, timeout=120
    )
    output = re.sub(r"\n {8}", " ", done.stdout)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"BAD   results/: /\S+ is not the same folder on node\d", output), output


def test_a_job_that_waits_and_ctrl_c() -> None:
    """It is cancelled when its time is over, and when the user loses patience."""
    held = {"set-resources": {"train": {"slurm_partition": "main", "slurm_extra": "--hold"}}}
    code, output = doctor({}, held, "--wait", "1")
    assert code == 0, output
    assert "note  job: has not started within 1 s (PENDING, JobHeldUser); cancelled" in output
    assert own_jobs() == []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command({}, held), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        assert "on main; it may wait 300 s" in process.stderr.readline()
        assert len(own_jobs()) == 1
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted\n"
    assert process.returncode == 130
    deadline = time.monotonic() + 20
    while own_jobs():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert not Path("results").exists()
