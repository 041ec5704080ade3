"""Start a real torchrun of `outlast train`, and see how it ends."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--logs-specs", "outlast"]


class Launch:
    """A torchrun of two ranks, each `outlast train`.

    ``wrapper``: a shell line that starts a rank, with the rank's command as its arguments.
    """

    def __init__(
        self,
        config: dict[str, Any],
        data: Path,
        folder: Path,
        wrapper: str | None = None,
        **environment: str,
    ) -> None:
        self.folder, self.log = folder, folder / "output"
        folder.mkdir()
        command = [*TORCHRUN, "--nproc-per-node", "2"]
        if wrapper:
            command += ["--no-python", "bash", "-c", wrapper, "bash", sys.executable]
        command += ["-m", "outlast", "train", "--device", "cpu"]
        command += ["--config", json.dumps(config), "--data", str(data), "--out", str(folder)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **environment}
            )
        self.ranks: dict[int, psutil.Process] = {}

    def wait_until_it_trains(self) -> None:
        """Wait for the first sign of life after the start; find the ranks."""
        deadline = time.monotonic() + 60
        while "epoch 1/" not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        self.find_ranks()

    def find_ranks(self) -> None:
        """Find both ranks below torchrun."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "python" in child.name():
                self.ranks[int(child.environ()["RANK"])] = child
        assert sorted(self.ranks) == [0, 1]

    def end(self, timeout_s: float) -> str:
        """Return the output when torchrun and all ranks have ended, within the time."""
        deadline = time.monotonic() + timeout_s
        self.process.wait(timeout_s)
        _, alive = psutil.wait_procs(self.ranks.values(), deadline - time.monotonic())
        assert not alive, f"ranks are left behind\n{self.log.read_text()}"
        return self.log.read_text()

    def clean_up(self) -> None:
        """End what is left of it."""
        for process in (*self.ranks.values(), self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
