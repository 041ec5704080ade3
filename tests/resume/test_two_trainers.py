"""Two trainers on one folder: one writes, and the other waits, leaves, or follows it."""

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from killing import Run, assert_same, kill_tree

Undisturbed = Callable[[int], Path]


def wait_for(ready: Callable[[], bool], run: Run, timeout_s: float = 60) -> None:
    """Wait until something is so, or fail with the log of the run."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, run.log
        time.sleep(0.01)


def family(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """Torchrun and its ranks."""
    root = psutil.Process(process.pid)
    return [*root.children(recursive=True), root]


def content(folder: Path) -> dict[str, str]:
    """Digest of each file of a run, but for what both may add a line to."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "events.log")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_second_waits_until_the_first_has_finished(
    world_size: int, data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """It says for whom, then finds the run complete; the bits are those of one alone."""
    run = Run(tmp_path / "run", data, world_size=world_size, wait_s=0.5)
    first = run.start()
    wait_for(run.trains, run)
    second = run.start()
    assert first.wait(120) == 0, run.log
    assert second.wait(120) == 0, run.log
    (waiting,) = [line for line in run.log.splitlines() if "waiting until it ends" in line]
    assert f"on {os.uname().nodename} trains this run" in waiting
    assert "already complete: 3 epochs" in run.log
    assert "resumed" not in run.log
    assert_same(run.folder, undisturbed(world_size))
    assert len((run.folder / "attempts.jsonl").read_text().splitlines()) == 2


def test_the_second_goes_on_when_the_first_is_killed(
    data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """At once: a process of this machine that is gone has no claim."""
    run = Run(tmp_path / "run", data, wait_s=1.0)
    first = run.start()
    wait_for(run.trains, run)
    run.wait_s = 0.05
    second = run.start()
    wait_for(lambda: "waiting until it ends" in run.log, run)
    assert first.poll() is None
    kill_tree(first)
    killed = time.monotonic()
    wait_for(lambda: "resumed: epoch" in run.log or "epoch 1/3" in run.log, run)
    assert time.monotonic() - killed < 15
    assert second.wait(120) == 0, run.log
    assert_same(run.folder, undisturbed(1))


def test_who_waits_can_be_stopped(data: Path, tmp_path: Path) -> None:
    """SIGTERM ends the waiting in one line; the first trains on."""
    run = Run(tmp_path / "run", data, wait_s=1.0)
    first = run.start()
    wait_for(run.trains, run)
    run.wait_s = 0.05
    second = run.start()
    wait_for(lambda: "waiting until it ends" in run.log, run)
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) != 0
    assert "SIGTERM: interrupted while waiting for process" in run.log
    assert "Traceback" not in run.log
    assert first.poll() is None
    kill_tree(first)


def test_who_waits_leaves_before_its_deadline(data: Path, tmp_path: Path) -> None:
    """In one line, before SLURM kills it without one; the first trains on."""
    run = Run(tmp_path / "run", data, world_size=2, wait_s=1.0)
    first = run.start()
    wait_for(run.trains, run)
    deadline = time.time() + 26  # some 6 to start; then too little to wait for anybody
    run.environment = {"OUTLAST_DEADLINE": str(deadline)}
    second = run.start()
    assert second.wait(60) != 0
    assert time.time() < deadline
    line = "the walltime is near: interrupted while waiting for process"
    assert run.log.count(line) == 1, run.log
    assert "Traceback" not in run.log
    assert first.poll() is None
    kill_tree(first)


def test_a_paused_owner_is_followed_and_writes_nothing_when_it_wakes(
    data: Path,
    undisturbed: Undisturbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP of torchrun and its ranks in mid-epoch; SIGCONT when the other has finished."""
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "3")
    run = Run(tmp_path / "run", data, world_size=2, every_seconds=0, wait_s=0.05)
    first = run.start()
    wait_for(lambda: (run.folder / "model_resume.pt").exists(), run)
    members = family(first)
    for member in members:
        member.send_signal(signal.SIGSTOP)
    paused = time.monotonic()
    second = run.start()
    assert second.wait(120) == 0, run.log
    assert time.monotonic() - paused > 3
    assert_same(run.folder, undisturbed(2))
    before = content(run.folder)
    for member in members:
        member.send_signal(signal.SIGCONT)
    assert first.wait(60) != 0
    assert "has taken this run over" in run.log
    assert "Traceback" not in run.log
    assert content(run.folder) == before
    attempts = (run.folder / "attempts.jsonl").read_text().splitlines()
    assert [json.loads(line)["state"] for line in attempts] == ["killed", "completed"]


def test_an_owner_on_another_machine_that_died_is_followed(
    data: Path, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can see its process, and SLURM is not there to ask: its beats have stopped."""
    monkeypatch.setenv("OUTLAST_CLAIM_EXPIRES_S", "2")
    run = Run(tmp_path / "run", data, wait_s=0.05)
    assert run.kill_when(run.trains, 0.3)
    (claim,) = run.folder.glob(".claim-*.json")
    owner = json.loads(claim.read_text())
    claim.write_text(json.dumps(owner | {"host": "node7", "machine": "another boot"}))
    started = time.monotonic()
    run.finish()
    assert time.monotonic() - started < 60
    assert f"process {owner['pid']} on node7 trains this run" in run.log
    assert_same(run.folder, undisturbed(1))
