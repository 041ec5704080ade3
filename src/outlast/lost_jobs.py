"""Ends of SLURM jobs that Snakemake's plugin misses: it would wait for them for ever.

Seen in snakemake-executor-plugin-slurm 2.8.0: a preempted job that SLURM does not start again
counts as running, and so does one that SLURM has forgotten (`MinJobAge` after its end) while
Snakemake was stopped or slurmctld was away. Both are reported as failed here: the next attempt goes
on.
"""

import asyncio
import functools
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from outlast import slurm

PLUGIN = "snakemake_executor_plugin_slurm"
# A single answer of squeue may be that of a new slurmctld; and where Snakemake asks the database
# for a job, it may get its answer after squeue has forgotten the job.
LOOKS = {slurm.PREEMPTED: 2, slurm.FORGOTTEN: 5, **dict.fromkeys(slurm.STUCK.values(), 2)}


def notice_lost_jobs() -> None:
    """Let the plugin look for such jobs too, if Snakemake has loaded it."""
    plugin = sys.modules.get(PLUGIN)
    if plugin is None or hasattr(plugin.Executor.check_active_jobs, "__wrapped__"):
        return
    original = plugin.Executor.check_active_jobs
    seen: Counter[str] = Counter()

    @functools.wraps(original)
    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncGenerator[Any, None]:
        # other clusters and arrays name their jobs in other ways
        known = {job.external_jobid: job for job in active_jobs if _is_plain(job.external_jobid)}
        lost: dict[str, str] = {}
        if known and not self._submitted_job_clusters:
            lost = await asyncio.to_thread(slurm.lost_jobs, list(known))
        for job_id in list(seen):
            if job_id not in lost:
                del seen[job_id]
        seen.update(list(lost))
        given_up = [
            job_id for job_id in known if job_id in lost and seen[job_id] >= LOOKS[lost[job_id]]
        ]
        for job_id in given_up:
            if lost[job_id] in slurm.STUCK.values():
                await asyncio.to_thread(slurm.cancel, job_id)
            self.report_job_error(
                known[job_id], msg=f"SLURM-job '{job_id}' failed: {lost[job_id]}. "
            )
        left = [job for job in active_jobs if job.external_jobid not in given_up]
        async for job in original(self, left):
            yield job

    plugin.Executor.check_active_jobs = check_active_jobs


def _is_plain(job_id: object) -> bool:
    return isinstance(job_id, str) and job_id.isdigit()
