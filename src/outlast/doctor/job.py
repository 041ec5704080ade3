"""A short job on the partition of the trainings: submitted, watched, and ended in any case."""

import contextlib
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from outlast.doctor.letters import TOKEN
from outlast.doctor.programs import ask, fields
from outlast.errors import OutlastError

MINUTES = 2
MOST_MB = 4000  # enough for torch; what asks for less than the trainings starts earlier
LOG = "job.log"
LOOK_S = 3  # between two questions to slurmctld
WAITING = ("PENDING", "CONFIGURING", "REQUEUED")
ENDING = ("RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING")


class RefusedError(OutlastError):
    """Sbatch did not take the job."""


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder for one visit, and ``parent`` where it is not yet; remove both again.

    Raises:
        OSError: It may not be written to, or is full.
    """
    is_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".outlast-doctor-", dir=parent.resolve()))
    try:
        folder.chmod(0o755)
        (folder / TOKEN).write_text(secrets.token_hex(16))
        yield folder
    finally:
        _remove(folder)
        if is_new:
            with contextlib.suppress(OSError):  # somebody has put something there
                parent.rmdir()


def _remove(folder: Path) -> None:
    for _ in range(10):  # a job that was cancelled may write for a moment still
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.5)


class Job:
    """The job of one visit.

    Attributes:
        number: SLURM's id.
        state: As squeue has said last.
        reason: Why it waits.
        started_after: Seconds from its submission to its start, or to now.
    """

    def __init__(self, number: str) -> None:
        self.number = number
        self.state, self.reason, self.started_after = "PENDING", "None", 0.0
        self._submitted = time.monotonic()
        self._looked = self._ended = float("-inf")

    @property
    def seconds(self) -> float:
        """Since it was submitted."""
        return time.monotonic() - self._submitted

    @property
    def is_waiting(self) -> bool:
        """It has not started."""
        return self.state in WAITING

    @property
    def ended_s(self) -> float:
        """Seconds since it was first seen to have ended; 0 before."""
        return time.monotonic() - self._ended if self._ended > 0 else 0.0

    def look(self) -> None:
        """Ask squeue, though not all the time."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        reply = ask("squeue", "-h", "--states=all", f"--jobs={self.number}", "--format=%T|%r")
        if reply.is_good and "|" in reply.output:
            self.state, self.reason = reply.output.split("|", 1)
        elif reply.is_good or "Invalid job id" in reply.error:
            self.state, self.reason = "FORGOTTEN", ""
        if self.is_waiting:
            self.started_after = self.seconds
        if self.state not in (*WAITING, *ENDING) and self._ended < 0:
            self._ended = time.monotonic()

    def ending(self) -> dict[str, str]:
        """Return what slurmctld knows of the job."""
        return fields(ask("scontrol", "--oneliner", "show", "job", self.number).output)


@contextmanager
def submitted(folder: Path, options: Sequence[str]) -> Iterator[Job]:
    """Submit the probe; scancel it at the end, however that comes.

    Raises:
        RefusedError: In sbatch's own words.
    """
    name = folder.name.lstrip(".")
    wrap = shlex.join([sys.executable, "-m", "outlast.doctor.probe", str(folder)])
    try:
        reply = ask(
            "sbatch",
            "--parsable",
            f"--job-name={name}",
            f"--output={folder / LOG}",
            f"--time={MINUTES}",
            "--nodes=1",
            "--ntasks=1",
            "--no-requeue",
            "--export=ALL",
            *options,
            f"--wrap=exec {wrap}",
        )
        if not reply.is_good:
            raise RefusedError(reply.error)
        yield Job(reply.output.partition(";")[0])
    finally:  # by its name: a Ctrl-C may come before sbatch has said the number
        ask("scancel", "--quiet", f"--name={name}")
