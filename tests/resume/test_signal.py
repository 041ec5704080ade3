"""Signals: every rank saves at the same step, one clear line, no traceback, exact resume."""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from killing import Run, assert_same

Undisturbed = Callable[[int], Path]


def interrupt_once_training(run: Run, number: signal.Signals) -> float:
    """Send ``number`` to torchrun alone in the middle of training; return the seconds it took."""
    process = run.start()
    while not run.trains():
        assert process.poll() is None, run.log
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(number)
    sent = time.monotonic()
    assert process.wait(60) != 0, "the rule must not count as done (story 26)"
    return time.monotonic() - sent


@pytest.mark.parametrize(
    ("number", "world_size"),
    [(signal.SIGTERM, 2), (signal.SIGHUP, 1), (signal.SIGINT, 2), (signal.SIGUSR1, 2)],
)
def test_signal_saves_and_resumes_exactly(
    number: signal.Signals, world_size: int, data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A signal to torchrun costs no step: saved within seconds by itself, resumed exactly."""
    run = Run(tmp_path / "run", data, world_size=world_size, every_seconds=3600)
    assert interrupt_once_training(run, number) < 10
    assert "Traceback" not in run.log
    assert "death signal" not in run.log, "torchrun has nothing to add"
    lines = [line for line in run.log.splitlines() if "interrupted" in line]
    assert len(lines) == 1, run.log
    step = re.search(r"interrupted in epoch (\d+) after step (\d+) of 7", lines[0])
    assert step, lines
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["step"]) == ("interrupted", int(step[2]))
    run.finish()
    assert f"resumed: epoch {step[1]}, after step {step[2]}" in run.log
    assert_same(run.folder, undisturbed(world_size))


def test_repeated_signals_do_not_cut_the_save_short(data: Path, tmp_path: Path) -> None:
    """Ctrl-C thrice in a step that takes seconds: torchrun waits for the save, without a word."""
    run = Run(tmp_path / "run", data, every_seconds=3600, wait_s=1.0)
    process = run.start()
    while not run.trains():
        assert process.poll() is None, run.log
        time.sleep(0.01)
    time.sleep(1.5)
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.2)
    assert process.wait(30) != 0
    assert "the state is saved" in run.log, run.log
    assert "Traceback" not in run.log
    assert (run.folder / "model_resume.pt").exists()


@pytest.mark.parametrize("what", ["step", "write"])
def test_torchrun_waits_as_long_as_it_takes(what: str, data: Path, tmp_path: Path) -> None:
    """A step or a write longer than torchrun's patience, 30 s by default: nothing is lost."""
    run = Run(tmp_path / "run", data, world_size=2, every_seconds=3600)
    run.environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}
    point = "copied" if what == "write" else "batch at=2 times=2 rank=1"
    run.environment["OUTLAST_FAULT"] = f"point={point} do=sleep for=3"
    assert interrupt_once_training(run, signal.SIGUSR1) > 2, run.log
    assert "the state is saved" in run.log, run.log
    assert run.log.splitlines()[-1] == "torchrun: stopped by SIGUSR1"
    assert "Traceback" not in run.log
    assert (run.folder / "model_resume.pt").exists()


def test_a_rank_that_is_stuck_is_killed_by_the_third_request(data: Path, tmp_path: Path) -> None:
    """It hears no signal; who asks again and again is not made to wait for it."""
    run = Run(tmp_path / "run", data, every_seconds=3600)
    process = run.start()
    while not run.trains():
        assert process.poll() is None, run.log
        time.sleep(0.01)
    (rank,) = psutil.Process(process.pid).children()
    rank.suspend()
    for _ in range(3):
        assert process.poll() is None, run.log
        process.send_signal(signal.SIGINT)
        time.sleep(2.2)
    assert process.wait(10) != 0
    assert not rank.is_running()
    assert "asked for the third time" in run.log
    assert run.log.splitlines()[-1] == "torchrun: stopped by SIGINT"
    assert "Traceback" not in run.log


def test_signal_during_validation_saves(
    data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The validation loop looks at the flag too (story 4)."""
    run = Run(tmp_path / "run", data, every_seconds=3600)
    process = run.start()
    while not run.validates():
        assert process.poll() is None, run.log
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    assert re.search("after step 7 of 7 and batch . of . of validation: the state is", run.log)
    run.finish()
    assert_same(run.folder, undisturbed(1))


def test_attempts_are_told(data: Path, tmp_path: Path) -> None:
    """Killed, interrupted and finished: a line each, and the history counts them."""
    run = Run(tmp_path / "run", data, every_seconds=0)
    assert run.kill_when(run.trains, 0.1)
    interrupt_once_training(run, signal.SIGTERM)
    run.finish()
    lines = [json.loads(line) for line in (run.folder / "attempts.jsonl").read_text().splitlines()]
    assert [line["state"] for line in lines] == ["killed", "interrupted", "completed"]
    assert [line["attempt"] for line in lines] == [1, 2, 3]
    history = run.history()
    assert history["attempts"] == 3
    lost, kept = (sum(line[f"{word}_seconds"] for line in lines) for word in ("lost", "kept"))
    assert history["lost_seconds"] == pytest.approx(lost, abs=0.5)
    assert history["kept_seconds"] == pytest.approx(kept, abs=0.5)
    assert all(line["lost_seconds"] > 1 for line in lines), "to import torch takes that long"
    assert history["kept_seconds"] == pytest.approx(sum(history["seconds"]))
    events = (run.folder / "events.log").read_text()
    assert events.count("resumed") == 2, "events.log keeps what earlier attempts said"
