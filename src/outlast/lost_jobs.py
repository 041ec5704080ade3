"""Ends of SLURM jobs that Snakemake's plugin misses: it would wait for them for ever.

Seen in snakemake-executor-plugin-slurm 2.8.0: a preempted job that SLURM does not start again
counts as running, and so does one that SLURM has forgotten (`MinJobAge` after its end) while
Snakemake was stopped or slurmctld was away. So does a job in the queue that will never start. All
are reported as failed here: the next attempt goes on. And when SLURM does not answer in time, the
plugin forgets all jobs that it has; here they stay.
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
    looks, settled = _Looks(), _note_settled(plugin.Executor)

    @functools.wraps(original)
    async def check_active_jobs(self: Any, active_jobs: Sequence[Any]) -> AsyncGenerator[Any, None]:
        # other clusters and arrays name their jobs in other ways
        known = {job.external_jobid: job for job in active_jobs if _is_plain(job.external_jobid)}
        found: dict[str, str] = {}
        if known and not self._submitted_job_clusters:
            found = await asyncio.to_thread(slurm.lost_jobs, list(known))
        for job_id, why in looks.doubtful(found):
            self.logger.warning(f"SLURM-job '{job_id}' waits: {why}.")
        given_up = looks.given_up(found)
        for job_id in given_up:
            if found[job_id] in slurm.STUCK.values():
                await asyncio.to_thread(slurm.cancel, job_id)
            msg = f"SLURM-job '{job_id}' failed: {found[job_id]}. "
            self.report_job_error(known[job_id], msg=msg)
        left = [job for job in active_jobs if job.external_jobid not in given_up]
        settled.clear()
        kept: set[int] = set()
        async for job in original(self, left):
            kept.add(id(job))
            yield job
        for job in left:
            if id(job) not in kept | settled:
                yield job

    plugin.Executor.check_active_jobs = check_active_jobs


class _Looks:
    """What several looks in a row have found."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._told: set[str] = set()

    def given_up(self, found: dict[str, str]) -> list[str]:
        """Return the jobs that were seen to be lost often enough."""
        lost = [job_id for job_id, why in found.items() if why in LOOKS]
        for job_id in self._seen.keys() - lost:
            del self._seen[job_id]
        self._seen.update(lost)
        return [job_id for job_id in lost if self._seen[job_id] >= LOOKS[found[job_id]]]

    def doubtful(self, found: dict[str, str]) -> list[tuple[str, str]]:
        """Return those that may wait for ever, with the reason; each once."""
        new = [pair for pair in found.items() if pair[1] not in LOOKS and pair[0] not in self._told]
        self._told.update(job_id for job_id, _ in new)
        return new


def _note_settled(executor: Any) -> set[int]:
    """Have the executor note which jobs it has reported the end of; return where."""
    settled: set[int] = set()

    def noting(report: Any) -> Any:
        @functools.wraps(report)
        def noted(self: Any, job_info: Any, *rest: Any, **options: Any) -> None:
            settled.add(id(job_info))
            report(self, job_info, *rest, **options)

        return noted

    for name in ("report_job_success", "report_job_error"):
        setattr(executor, name, noting(getattr(executor, name)))
    return settled


def _is_plain(job_id: object) -> bool:
    return isinstance(job_id, str) and job_id.isdigit()
