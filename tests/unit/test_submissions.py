"""Jobs that SLURM does not take for a while; tests/slurm has the real plugin and SLURM."""

import itertools
import logging
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast import slurm, submissions
from outlast.lost_jobs import PLUGIN

# as SLURM 22.05 and the plugin have said it
AWAY = "Batch job submission failed: Unable to contact slurm controller (connect failure)"
FULL = (
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job"
    " violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)
DRAINED = "Batch job submission failed: Required partition not available (inactive or drain)"
UNSIGNED = "Batch job submission failed: Protocol authentication error"
WRONG = "sbatch: error: invalid partition specified: nowhere"
LARGE = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
NO_DATABASE = (
    "Job submission failed with exception: The 'sacctmgr' reported: 'Unable to test the validity of"
    " the given or guessed SLURM account 'lab' with sacctmgr: ...'"
)


PASSING = [AWAY, FULL, FULL.replace("AssocMaxSubmitJobLimit", "QOSGrpSubmitJobsLimit"), DRAINED]
PASSING += [UNSIGNED, NO_DATABASE]


class Executor:
    """What outlast touches of the plugin's; sbatch gives these answers, and then takes the job."""

    def __init__(self, *answers: str) -> None:
        self.wait, self.logger = True, logging.getLogger("test")
        self.answers, self.errors, self.submitted = list(answers), [], 0
        self.cancelled: list[Any] = []

    def run_job(self, job: Any) -> None:
        if not self.answers:
            self.submitted += 1
            return
        said = self.answers.pop(0)
        if not said.startswith("Job"):
            said = f"SLURM sbatch failed. The error message was '{said}'.\n    sbatch call:\n"
            said += "    sbatch --wrap='timed out'"
        self._report_job_error_threadsafe(SimpleNamespace(job=job), said)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        self.errors.append(msg)

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        """The main thread will call the next one."""

    def report_job_submission(self, job_info: Any) -> None:
        """Note it."""

    def cancel_jobs(self, active_jobs: Any) -> None:
        self.cancelled += active_jobs


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> type[Executor]:
    """The executor, taught to wait, though not for long."""
    executor = type("Executor", (Executor,), dict(Executor.__dict__))
    monkeypatch.setitem(sys.modules, PLUGIN, SimpleNamespace(Executor=executor))
    monkeypatch.setattr(submissions, "FIRST_S", 0.01)
    submissions.mend_submissions()
    submissions.mend_submissions()  # a second Snakefile in one process
    return executor


JOB = SimpleNamespace(name="train")


@pytest.mark.parametrize("answer", PASSING, ids=PASSING)
def test_what_passes_is_waited_out(plugin: Any, caplog: Any, answer: str) -> None:
    """No attempt fails, and each refusal is told."""
    executor = plugin(answer, answer, answer)
    executor.run_job(JOB)
    assert (executor.submitted, executor.errors) == (1, [])
    told = [record.message for record in caplog.records]
    assert len(told) == 3
    assert all("SLURM takes no job of train now" in line for line in told)
    assert "\n" not in told[0]
    assert "timed out" not in told[0]


@pytest.mark.parametrize("answer", [WRONG, LARGE])
def test_what_comes_again_is_a_failure(plugin: Any, answer: str) -> None:
    """Also after a refusal that passed; the sbatch call in its message may hold any words."""
    executor = plugin(AWAY, answer)
    executor.run_job(JOB)
    assert executor.submitted == 0
    assert [answer in error for error in executor.errors] == [True]


def test_the_pauses_grow(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long each time, up to the longest."""
    pauses: list[float] = []
    monkeypatch.setattr(submissions, "_wait", lambda _, pause: pauses.append(pause) or True)
    monkeypatch.setattr(submissions, "MOST_S", 0.05)
    plugin(*[AWAY] * 5).run_job(JOB)
    assert pauses == [0.01, 0.02, 0.04, 0.05, 0.05]


def test_patience_ends(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of no job at all must not be waited for, for ever."""
    clock = itertools.count(step=3600.0)
    monkeypatch.setattr(submissions, "_wait", lambda *_: True)
    monkeypatch.setattr(submissions, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    executor = plugin(*[FULL] * 50)
    executor.run_job(JOB)
    assert len(executor.errors) == 1
    assert len(executor.answers) == 50 - 24


def test_a_snakemake_that_ends_does_not_wait(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C: the interpreter waits for the threads that submit."""
    monkeypatch.setattr(submissions, "FIRST_S", 60.0)
    executor = plugin(AWAY)
    thread = threading.Thread(target=executor.run_job, args=(JOB,))
    thread.start()
    time.sleep(0.3)
    executor.cancel_jobs(["one"])
    thread.join(5)
    assert not thread.is_alive()
    assert (executor.submitted, executor.errors, executor.cancelled) == (0, [], ["one"])
    executor.run_job(JOB)  # one that was still to come
    assert executor.submitted == 0


def test_what_is_just_submitted_is_cancelled_too(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What Snakemake has noted, it cancels itself."""
    ended: list[str] = []
    monkeypatch.setattr(slurm, "cancel", ended.append)
    executor = plugin()

    def job(number: str) -> Any:
        return SimpleNamespace(external_jobid=number, aux={"slurm_logfile": tmp_path / number})

    for number in "12":
        executor._report_job_submission_threadsafe(job(number))
    executor.report_job_submission(job("1"))
    executor.cancel_jobs([])
    assert ended == ["2"]
    executor._report_job_submission_threadsafe(job("3"))  # sbatch was at work
    assert ended == ["2", "3"]
    assert (tmp_path / "1").exists(), "so that its folder is not empty"


def test_errors_of_running_jobs_are_left_alone(plugin: Any) -> None:
    """They come from other places, and are none of a submission."""
    executor = plugin()
    executor._report_job_error_threadsafe(SimpleNamespace(job=JOB), f"SLURM sbatch failed. {AWAY}")
    assert len(executor.errors) == 1


def test_without_the_plugin_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with profiles/local, where it may not be installed."""
    monkeypatch.delitem(sys.modules, PLUGIN, raising=False)
    submissions.mend_submissions()
    assert PLUGIN not in sys.modules
