"""The end of the job: where it is learned, and when it is time to leave."""

import os
import time
from pathlib import Path

import pytest
from small_run import make_trainer

from outlast.errors import InterruptedRunError
from outlast.train import deadline as deadline_module
from outlast.train.deadline import Deadline

SQUEUE = """\
#!/bin/sh
echo "$SLURM_TIME_FORMAT $@" >> {folder}/asked
{answer}
"""


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of any job."""
    for name in ("OUTLAST_DEADLINE", "SLURM_JOB_END_TIME", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def squeue(folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a squeue with this answer first in the path, and be job 7."""
    (folder / "squeue").write_text(SQUEUE.format(folder=folder, answer=answer))
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def test_without_a_job_there_is_no_end() -> None:
    """Nothing is asked, and it is never late."""
    deadline = Deadline.of_this_job()
    assert deadline.seconds_left is None
    assert not deadline.is_near()


@pytest.mark.parametrize("name", ["OUTLAST_DEADLINE", "SLURM_JOB_END_TIME"])
def test_the_environment_tells_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds since 1970; our own name goes before SLURM's."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 9000))
    monkeypatch.setenv(name, f"{time.time() + 100:.0f}")
    assert Deadline.of_this_job().seconds_left == pytest.approx(100, abs=2)


@pytest.mark.parametrize(
    "text", ["tomorrow", "nan", "inf", "-inf", "1e999", "-5", "3600", "2099-01-01", "now in ms"]
)
def test_a_deadline_that_is_no_time_is_told(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next source is asked: one that is too large would mean that there is no end."""
    text = text.replace("now in ms", f"{1000 * time.time():.0f}")
    monkeypatch.setattr(deadline_module.log, "propagate", True)
    monkeypatch.setenv("OUTLAST_DEADLINE", text)
    monkeypatch.setenv("SLURM_JOB_END_TIME", f"{time.time() + 100:.0f}")
    assert Deadline.of_this_job().seconds_left == pytest.approx(100, abs=2)
    assert f"OUTLAST_DEADLINE: {text!r} is not allowed; seconds since 1970" in caplog.text


def test_slurm_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In local time, as squeue writes it by default, whatever the user has set."""
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 3600))
    squeue(tmp_path, f"echo {end}", monkeypatch)
    assert Deadline.of_this_job().seconds_left == pytest.approx(3600, abs=2)
    asked = (tmp_path / "asked").read_text()
    assert asked == "standard --noheader --states=all --jobs 7 --format %e\n"


def test_what_the_environment_tells_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may be told to end before its walltime."""
    squeue(tmp_path, "echo 2099-01-01T00:00:00", monkeypatch)
    monkeypatch.setenv("OUTLAST_DEADLINE", f"{time.time() + 100:.0f}")
    assert Deadline.of_this_job().seconds_left == pytest.approx(100, abs=2)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    "answer", ["echo NONE", "echo", "exit 1", "echo Unknown", r"printf '\377\n'"]
)
def test_a_job_without_a_known_end_has_none(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No limit, no answer."""
    squeue(tmp_path, answer, monkeypatch)
    assert Deadline.of_this_job().seconds_left is None


def test_the_margin_comes_from_steps_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the longest of each, and ten seconds to leave; by a clock that nobody can set."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    deadline = Deadline(100)
    for passed in (1, 3, 2):
        assert not deadline.is_near()
        now += passed
    deadline.note_save(5)
    deadline.note_save(4)
    deadline = Deadline(100)
    deadline.note_save(5)
    deadline.is_near()
    now += 3
    for _ in range(23):
        assert not deadline.is_near(), now
        now += 3
    assert deadline.seconds_left == 28  # 2 x (3 + 5) + 10 = 26
    assert not deadline.is_near()
    now += 2.5
    assert deadline.is_near()


class Soon(Deadline):
    """Near at one boundary of an attempt, the ninth."""

    asked = 0

    def is_near(self) -> bool:
        self.asked += 1
        return self.asked == 9


def test_a_run_stops_in_time_and_goes_on_exactly(tmp_path: Path) -> None:
    """At a step boundary, with its state saved; the attempts together do what one would."""
    alone = make_trainer(tmp_path / "alone").train(6)
    said = []
    for _ in range(20):
        trainer = make_trainer(tmp_path / "run")
        trainer._keeper.poll._deadline = Soon()
        try:
            history = trainer.train(6)
        except InterruptedRunError as error:
            said.append(str(error))
        else:
            break
    assert len(said) >= 3
    assert all(line.startswith("the walltime is near: interrupted in epoch") for line in said)
    assert history["train_loss"] == alone["train_loss"]
    assert history["val_loss"] == alone["val_loss"]


def test_a_deadline_of_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever SLURM says, which is not even asked."""
    squeue(tmp_path, "echo 2030-01-01T00:00:00", monkeypatch)
    monkeypatch.setenv("OUTLAST_DEADLINE", "none")
    assert Deadline.of_this_job().seconds_left is None
    assert not (tmp_path / "asked").exists()
