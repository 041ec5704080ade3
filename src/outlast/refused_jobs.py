"""Submissions that SLURM refuses for a while: they wait, and use up no retry.

Seen in snakemake-executor-plugin-slurm 2.8.0: a job that sbatch does not take counts as a failed
attempt, and the next one comes at once. A slurmctld that is away for two minutes, or an account
that has as many jobs in the queue as it may, would cost all retries of a run, and the night.
"""

import functools
import re
import sys
import threading
import time
from typing import Any

from outlast.lost_jobs import PLUGIN

# What SLURM says of a limit on the number of jobs (association, QOS), and when slurmctld or the
# database behind it, which the plugin asks for the account, is away or busy. Any other refusal
# comes again: a partition or an account that is none, too much memory.
PASSES = re.compile(
    r"MaxSubmit|temporarily un|timed out|standby mode|zero bytes were transmitted"
    r"|unable to contact slurm|(message|connection)\b.* failure|unable to test the validity",
    re.IGNORECASE,
)
# Until the next try: twice as long each time, and in all for a day.
FIRST_S, MOST_S, PATIENCE_S = 15.0, 600.0, 86400.0


def wait_out_refusals() -> None:
    """Let the plugin submit such a job again later, if Snakemake has loaded it."""
    plugin = sys.modules.get(PLUGIN)
    if plugin is None or hasattr(plugin.Executor.run_job, "__wrapped__"):
        return
    submit, report = plugin.Executor.run_job, plugin.Executor._report_job_error_threadsafe
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
        while True:
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
            if not _wait(self, pause):
                return
            pause = min(2 * pause, MOST_S)

    plugin.Executor._report_job_error_threadsafe = hold_back
    plugin.Executor.run_job = run_job


def _passing_reason(message: str) -> str | None:
    """Return what SLURM has said, if that passes."""
    said = message.partition("sbatch call:")[0]  # behind it there may be anything
    return " ".join(said.split()).rstrip(".'") if PASSES.search(said) else None


def _wait(executor: Any, seconds: float) -> bool:
    """Wait; return False once Snakemake ends."""
    until = time.monotonic() + seconds
    while executor.wait and time.monotonic() < until:
        time.sleep(0.2)
    return bool(executor.wait)
