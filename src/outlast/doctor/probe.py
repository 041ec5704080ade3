"""What the job of `outlast doctor` does on its node: it says what it sees there.

    python -m outlast.doctor.probe FOLDER

FOLDER is below results/, and the login node has written a token there. Three answers, so that
one that hangs keeps none of the others back: ANSWER at once, ECHO as soon as the login node has
said that it saw the answer, TORCH when torch is imported.
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
from outlast.doctor.letters import ANSWER, ECHO, HEARD, TOKEN, TORCH, wait_for
from outlast.files import write_json

SEEN_S = 30  # a network file system may show a new file this much later


def main(folder: Path) -> None:
    """Give all answers."""
    token = _wait_for(folder / TOKEN)
    write_json(folder / ANSWER, {"token": token, **_place(folder)})
    if _wait_for(folder / HEARD) is not None:
        heard = time.time()
        write_json(folder / ECHO, {"heard": heard, "written": time.time()})
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
