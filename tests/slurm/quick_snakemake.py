"""Snakemake that looks at its jobs every second.

The SLURM plugin looks after 20 s, then 30 s later, then 40 s, ...; at the end it waits for the next
look before it leaves. What SLURM does not take is submitted again after 15 s, 30 s, ...; here after
two. Nothing else is changed, and the Snakemakes within the jobs are as they are.
"""

import asyncio
import sys

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from outlast import submissions


async def _sleep(_executor: RemoteExecutor) -> None:
    await asyncio.sleep(1)


RemoteExecutor.sleep = _sleep
submissions.FIRST_S = 2.0
sys.exit(main())
