"""What the job of `outlast doctor` does on its node: it says what it sees there.

    python -m outlast.doctor.probe FOLDER

FOLDER is below results/, and the login node has written a token there. Four answers, so that one
that hangs keeps none of the others back: ANSWER at once, ECHO as soon as the login node has said
that it saw the answer, STEP when a step of the job has run, TORCH when torch is imported.
"""

import os
import shutil
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import outlast
from outlast import slurm
from outlast.doctor.letters import ANSWER, ECHO, HEARD, STEP, TOKEN, TORCH, wait_for
from outlast.doctor.programs import ask
from outlast.files import write_json

SEEN_S = 30  # a network file system may show a new file this much later


def main(folder: Path) -> None:
    """Give all answers."""
    token = _wait_for(folder / TOKEN)
    write_json(folder / ANSWER, {"token": token, **_place(folder)})
    if _wait_for(folder / HEARD) is not None:
        heard = time.time()
        write_json(folder / ECHO, {"heard": heard, "written": time.time()})
    write_json(folder / STEP, _step())
    write_json(folder / TORCH, _torch())


def _wait_for(path: Path) -> str | None:
    end = time.monotonic() + SEEN_S
    return path.read_text() if wait_for(path, lambda: time.monotonic() > end) else None


def _place(folder: Path) -> dict[str, Any]:
    job = slurm.own_job()
    return {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "clock": time.time(),
        "deadline": slurm.end_of(job) if job else None,
        "python": ".".join(map(str, sys.version_info[:3])),
        "version": version("outlast"),
        "file": str(outlast.__file__),
        "torchrun": shutil.which("torchrun"),
        "free_bytes": shutil.disk_usage(folder).free,
    }


def _step() -> dict[str, str]:
    """Start a step as the plugin does in each job: with few of SLURM's variables left."""
    left = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME")
    unset = [name for name in os.environ if name.startswith("SLURM_") and name not in left]
    options = [f"--unset={name}" for name in unset]
    reply = ask("env", *options, "srun", "--ntasks=1", "--cpu-bind=q", "true")
    return {"error": "" if reply.is_good else reply.error}


def _torch() -> dict[str, Any]:
    before = time.monotonic()
    try:
        import torch

        found = {"version": torch.__version__, "gpus": torch.cuda.device_count()}
    except Exception as error:  # of a library that is not there, or is for another machine
        return {"error": f"{type(error).__name__}: {error}"}
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**found, "devices": devices, "seconds": time.monotonic() - before}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
