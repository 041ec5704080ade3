"""Jobs that Snakemake would wait for, for ever; tests/slurm has the real plugin and SLURM."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outlast import slurm
from outlast.lost_jobs import PLUGIN, notice_lost_jobs


class Executor:
    """What outlast touches of the plugin's."""

    def __init__(self) -> None:
        self._submitted_job_clusters: set[str] = set()
        self.errors: list[str] = []
        self.logger = logging.getLogger("test")

    def report_job_error(self, job: Any, msg: str) -> None:
        self.errors.append(f"{job.external_jobid}: {msg}")

    def report_job_success(self, job: Any) -> None:
        """It has ended well."""

    async def check_active_jobs(self, active_jobs: Any) -> Any:
        for job in active_jobs:
            if job.external_jobid == "8":
                self.report_job_success(job)
            elif job.external_jobid != "9":  # as of all jobs, when SLURM does not answer
                yield job


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Look at jobs with a squeue that gives these answers; return which are left, each time."""
    executor = type("Executor", (Executor,), {"check_active_jobs": Executor.check_active_jobs})
    monkeypatch.setitem(sys.modules, PLUGIN, SimpleNamespace(Executor=executor))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    notice_lost_jobs()
    notice_lost_jobs()  # a second Snakefile in one process
    made = executor()

    async def look(jobs: list[Any]) -> list[str]:
        return [job.external_jobid async for job in made.check_active_jobs(jobs)]

    def all_looks(answers: list[str], *ids: str) -> tuple[list[list[str]], list[str]]:
        left = []
        active = list(ids)
        for answer in answers:
            script = tmp_path / "squeue"
            script.write_text(f"#!/bin/sh\n{answer}\n")
            script.chmod(0o755)
            active = asyncio.run(look([SimpleNamespace(external_jobid=name) for name in active]))
            left.append(active)
        return left, made.errors

    return all_looks


def test_a_preempted_and_a_forgotten_job_are_failures_in_the_end(looks: Any) -> None:
    """Once each, at the second and at the fifth look; the others are left to the plugin."""
    answer = "echo '1|RUNNING|main|None'; echo '2|PREEMPTED|main|None'"
    left, errors = looks([answer] * 6, "1", "2", "3")
    assert left == [["1", "2", "3"], *[["1", "3"]] * 3, ["1"], ["1"]]
    assert len(errors) == 2
    assert "'2' failed: it was preempted, and SLURM does not start it again" in errors[0]
    assert "'3' failed: SLURM knows nothing of it any more" in errors[1]


def test_a_job_that_comes_back_is_none(looks: Any) -> None:
    """SLURM starts it again, or had only just started itself."""
    answers = [
        "true",
        "echo '1|PENDING|main|None'",
        "echo '1|PREEMPTED|main|None'",
        "echo '1|RUNNING|main|None'",
        "true",
    ]
    assert looks(answers, "1") == ([["1"]] * 5, [])


def test_nothing_is_lost_where_squeue_does_not_answer(looks: Any) -> None:
    """Slurmctld is away, and will be back."""
    assert looks(["echo error >&2; exit 1"] * 3, "1") == ([["1"]] * 3, [])


def test_a_job_that_will_never_start_is_a_failure(looks: Any, tmp_path: Path) -> None:
    """It is taken out of the queue; one that waits its turn, or that its owner holds, is not."""
    cancel = tmp_path / "scancel"
    cancel.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/cancelled\n')
    cancel.chmod(0o755)
    answer = "; ".join(
        f"echo '{line}'"
        for line in (
            "1|PENDING|main|Resources",
            "2|PENDING|main|PartitionTimeLimit",
            "3|PENDING|main|launch failed requeued held",
            "4|PENDING|main|JobHeldUser",
            "5|RUNNING|main|None",
        )
    )
    left, errors = looks([answer] * 3, *"12345")
    assert left == [list("12345"), list("145"), list("145")]
    assert "'2' failed: it asks for more time than its partition gives" in errors[0]
    assert "'3' failed: SLURM could not start it" in errors[1]
    assert (tmp_path / "cancelled").read_text() == "--quiet 2\n--quiet 3\n"


def test_jobs_stay_while_slurm_does_not_answer(looks: Any) -> None:
    """The plugin forgets them all then, and a job that has ended well is gone for good."""
    answer = "exit 1"
    assert looks([answer] * 2, "7", "8", "9") == ([["7", "9"]] * 2, [])


def test_a_job_that_may_never_start_is_told_of(looks: Any, caplog: Any) -> None:
    """Once; nodes that are down give the same reason, and come back."""
    answer = "echo '1|PENDING|main|PartitionConfig'; echo '2|PENDING|a,b|PartitionTimeLimit'"
    assert looks([answer] * 5, "1", "2") == ([["1", "2"]] * 5, [])
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("SLURM-job '1' waits: its partition may never give")


def test_names_of_arrays_are_left_alone(looks: Any) -> None:
    """A pending array has another one."""
    assert looks(["true"] * 3, "7_2") == ([["7_2"]] * 3, [])


def test_without_the_plugin_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with profiles/local, where it may not be installed."""
    monkeypatch.delitem(sys.modules, PLUGIN, raising=False)
    notice_lost_jobs()
    assert PLUGIN not in sys.modules
    assert callable(slurm.lost_jobs)
