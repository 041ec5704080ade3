"""How jobs come to SLURM: refusals that pass are waited out, and a Ctrl-C ends all of it.

Seen in snakemake-executor-plugin-slurm 2.8.0: a job that sbatch does not take counts as a failed
attempt, and the next one comes at once. A slurmctld that is away for two minutes, or an account
that has as many jobs in the queue as it may, would cost all retries of a run, and the night. And
after a Ctrl-C, which cancels the jobs that run, those are submitted that were still to come. And
the folder for the log of a job that waits is removed when another Snakemake ends here.
"""

import functools
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from outlast import slurm
from outlast.lost_jobs import PLUGIN

# What SLURM says of a limit on the number of jobs (association, QOS), of a partition before a
# maintenance, and when slurmctld or the database behind it, which the plugin asks for the account,
# is away or busy. Any other refusal comes again: no such partition or account, too much memory.
PASSES = re.compile(
    r"(Max|Grp)Submit|temporarily un|timed out|standby mode|zero bytes were transmitted"
    r"|unable to contact slurm|(message|connection)\b.* failure|unable to test the validity"
    r"|inactive or drain|authentication error",
    re.IGNORECASE,
)
# Until the next try: twice as long each time, and in all for a day.
FIRST_S, MOST_S, PATIENCE_S = 15.0, 600.0, 86400.0


class _Submissions:
    """Of one executor.

    Attributes:
        is_over: Snakemake has been asked to cancel its jobs.
        unknown: Ids of jobs that SLURM has taken, and that Snakemake has not yet noted.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.unknown: set[str] = set()


def mend_submissions() -> None:
    """Do so, if Snakemake has loaded the plugin."""
    plugin = sys.modules.get(PLUGIN)
    if plugin is None or hasattr(plugin.Executor.run_job, "__wrapped__"):
        return
    executor = plugin.Executor
    executor.run_job = _waiting(executor)
    _cancelling(executor)


def _of(executor: Any) -> _Submissions:
    found: _Submissions = vars(executor).setdefault("_outlast_submissions", _Submissions())
    return found


def _waiting(executor: Any) -> Any:
    """Return a ``run_job`` that waits where SLURM takes no job, and submits none after a Ctrl-C."""
    submit, report = executor.run_job, executor._report_job_error_threadsafe
    here = threading.local()  # jobs are submitted in threads

    @functools.wraps(report)
    def hold_back(self: Any, job_info: Any, msg: str) -> None:
        why = _passing_reason(msg)
        if why is not None and getattr(here, "may_wait", False):
            here.refusal = why
        else:
            report(self, job_info, msg)

    @functools.wraps(submit)
    def run_job(self: Any, job: Any) -> None:
        pause, since = FIRST_S, time.monotonic()
        while not _of(self).is_over:
            here.refusal, here.may_wait = None, time.monotonic() - since < PATIENCE_S
            try:
                submit(self, job)
            finally:
                here.may_wait = False
            if here.refusal is None:
                return
            self.logger.warning(
                f"SLURM takes no job of {job.name} now, and is asked again in {pause:.0f} s; no"
                f" retry is used up. {here.refusal}"
            )
            _wait(self, pause)
            pause = min(2 * pause, MOST_S)

    executor._report_job_error_threadsafe = hold_back
    return run_job


def _cancelling(executor: Any) -> None:
    """Cancel, too, what SLURM has just taken or takes at this moment."""
    cancel, taken = executor.cancel_jobs, executor._report_job_submission_threadsafe
    note = executor.report_job_submission

    @functools.wraps(cancel)
    def cancel_jobs(self: Any, active_jobs: Sequence[Any]) -> None:
        submissions = _of(self)
        submissions.is_over = True  # first: the plugin then waits for what is still to be submitted
        for job_id in list(submissions.unknown):
            slurm.cancel(job_id)
        cancel(self, active_jobs)

    @functools.wraps(taken)
    def report_taken(self: Any, job_info: Any) -> None:
        submissions = _of(self)
        submissions.unknown.add(job_info.external_jobid)
        # an empty folder is removed by any Snakemake that ends
        with suppress(OSError, KeyError, TypeError):
            Path(job_info.aux["slurm_logfile"]).touch()
        if submissions.is_over:
            slurm.cancel(job_info.external_jobid)
        taken(self, job_info)

    @functools.wraps(note)
    def report_job_submission(self: Any, job_info: Any, *rest: Any, **options: Any) -> None:
        note(self, job_info, *rest, **options)
        _of(self).unknown.discard(job_info.external_jobid)

    executor.cancel_jobs = cancel_jobs
    executor._report_job_submission_threadsafe = report_taken
    executor.report_job_submission = report_job_submission


def _passing_reason(message: str) -> str | None:
    """Return what SLURM has said, if that passes."""
    said = message.partition("sbatch call:")[0]  # behind it there may be anything
    return " ".join(said.split()).rstrip(".'") if PASSES.search(said) else None


def _wait(executor: Any, seconds: float) -> None:
    """Wait, or until Snakemake ends."""
    until = time.monotonic() + seconds
    while not _of(executor).is_over and executor.wait and time.monotonic() < until:
        time.sleep(0.2)
    if not executor.wait:
        _of(executor).is_over = True
