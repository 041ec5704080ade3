"""Asking SLURM's programs, which may be slow or silent."""

import os
import subprocess
from dataclasses import dataclass

TIMEOUT_S = 30
LOOKS = ("SQUEUE_", "SINFO_")


@dataclass(frozen=True)
class Reply:
    """What a program has said.

    Attributes:
        is_good: It ended with exit code 0.
        output: What it printed.
        error: Why it did not answer, in its own words or in ours.
    """

    is_good: bool
    output: str
    error: str


def ask(*command: str) -> Reply:
    """Run a program and return what it says, in English and whatever happens."""
    # what a user has set for his own looks at the queue would hide jobs and nodes here
    own = {name: value for name, value in os.environ.items() if not name.startswith(LOOKS)}
    environment = {**own, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except FileNotFoundError:
        return Reply(False, "", f"there is no {command[0]} on the PATH")
    except OSError as reason:
        return Reply(False, "", f"{command[0]}: {reason.strerror}")
    except subprocess.TimeoutExpired:
        return Reply(False, "", f"{command[0]} is silent for {TIMEOUT_S} s")
    said = " ".join((done.stderr.strip() or done.stdout).split())
    error = said or f"{command[0]} ends with exit code {done.returncode}"
    return Reply(done.returncode == 0, done.stdout.strip(), error)


def fields(text: str) -> dict[str, str]:
    """Return the ``Key=value`` words of ``scontrol --oneliner``."""
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, equals, value in pairs if equals}
