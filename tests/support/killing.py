"""Start a real torchrun, kill it for real, and compare what is left with an undisturbed run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from outlast.files import TEMPORARY_MARK

BIN = Path(sys.executable).parent
NETWORK = Path(__file__).with_name("patient_network.py")
# what differs between two runs that are the same
TIMES = {"seconds", "samples_per_second", "attempts", "kept_seconds", "lost_seconds"}


def run_config(**training: Any) -> dict[str, Any]:
    """Return a config whose state has everything in it that can be lost."""
    return {
        "data": {"source": "digits", "normalize": "per_sample"},
        "model": {"network": f"{NETWORK}:PatientNet"},
        "training": {
            "epochs": 3,
            "batch_size": 200,
            "learning_rate": 0.01,
            "grad_accum_split": 2,
            "scheduler": {"name": "reduce_on_plateau", "patience": 0},
            **training,
        },
    }


# heads, label noise, clip window, warm-up, plateau, bfloat16, augmentation, three parts
STUDY: dict[str, Any] = {
    "data": {
        "source": "diabetes",
        "inputs": ["age", "bmi", "bp", "s[1-6]"],
        "label": "progression",
        "threshold": "median",
        "noise_group": "sex",
        "confound": "sex",
        "target": "progression",
        "normalize": "standard",
        "split": {"stratify": False},
    },
    "model": {"network": f"{NETWORK}:PatientNet"},
    "loss": {
        "name": "noise_corrected_bce",
        "label_noise": {"rates": {"1": 0.1, "2": 0.2}},
        "label_smoothing": 0.05,
        "class_weights": "auto",
    },
    "adversary": {"strength": 0.3, "anneal_epochs": 4},
    "regression": {"weight": 0.5},
    "training": {
        "epochs": 9,
        "batch_size": 24,  # 13 steps per epoch: the clip window is full before the end
        "grad_accum_split": 3,
        "learning_rate": 0.01,
        "scheduler": {"name": "reduce_on_plateau", "patience": 0},
        "warmup_epochs": 2,
        "selection_metric": "val_acc",  # coarse: it stands still, and the plateau fires
        "quantile_grad_clip": True,
        "max_grad_norm": 5.0,
        "precision": "bfloat16",
        "augment": {"jitter": 0.1, "min_scale": 0.9, "max_scale": 1.1},
        "early_stopping_patience": 0,
    },
}


def prepare_digits(folder: Path) -> Path:
    """Prepare the data of :func:`run_config`; return their folder."""
    command = [sys.executable, "-m", "outlast", "prepare", "--config", json.dumps(run_config())]
    subprocess.run([*command, "--out", folder / "data"], check=True)
    return folder / "data"


@dataclass
class Run:
    """One run folder, and the attempts made in it."""

    folder: Path
    data: Path
    config: dict[str, Any] = field(default_factory=run_config)
    world_size: int = 1
    every_seconds: float = 0.1
    wait_s: float = 0.02  # of each forward pass
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def marks(self) -> Path:
        return self.folder.parent / f"{self.folder.name}-marks"

    @property
    def log(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.log").read_text()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start an attempt; its output is appended to :attr:`log`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.marks.mkdir(exist_ok=True)
        for mark in self.marks.iterdir():
            mark.unlink()
        command = [
            *(BIN / "torchrun", "--standalone", "--nproc-per-node", str(self.world_size)),
            *("--logs-specs", "outlast", "-m", "outlast", "train"),
            *("--config", json.dumps(self.config), "--data", self.data, "--out", self.folder),
            *("--checkpoint-every", str(self.every_seconds), "--device", "cpu", "--threads", "1"),
        ]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
            environment["OUTLAST_TEST_MARKS"] = str(self.marks)
            environment["OUTLAST_TEST_WAIT_S"] = str(self.wait_s)
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def finish(self, timeout_s: float = 240) -> None:
        """Run one attempt to its end, which must be a success."""
        process = self.start()
        assert process.wait(timeout_s) == 0, self.log

    def kill_when(
        self, ready: Callable[[], bool], delay_s: float = 0.0, timeout_s: float = 120
    ) -> bool:
        """Start an attempt and SIGKILL its whole tree ``delay_s`` after ``ready``.

        Returns:
            False when the attempt came to its end before that.
        """
        process = self.start()
        deadline = time.monotonic() + timeout_s
        while not ready():
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"never ready\n{self.log}"
            time.sleep(0.001)
        time.sleep(delay_s)
        return kill_tree(process)

    def trains(self) -> bool:
        """Tell whether the running attempt has begun to train."""
        return len(self.training_times()) > 0

    def training_times(self) -> list[float]:
        """Return when rank 0 began each part of a batch in the last attempt, since the epoch."""
        mark = self.marks / "training-0"
        return list(map(float, mark.read_text().split())) if mark.exists() else []

    def validates(self) -> bool:
        """Tell whether the running attempt has begun to validate."""
        return (self.marks / "validation").exists()

    def kill_writer_of_state(self) -> bool:
        """SIGKILL the rank that is writing a state file at this moment, if one is."""
        for name in self.temporaries():
            if not name.startswith("model_resume"):
                continue
            try:
                os.kill(int(name.rpartition("-")[2]), signal.SIGKILL)
            except ProcessLookupError:  # what an earlier kill has left
                continue
            return True
        return False

    def temporaries(self) -> list[str]:
        """Name the files below the folder that are being written, or were when a kill came."""
        # not rglob: it fails when a folder goes away while it looks
        names = (name for _, _, files in os.walk(self.folder) for name in files)
        return [name for name in names if TEMPORARY_MARK in name]

    def history(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "history.json").read_text())
        return content


def kill_tree(process: "subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> bool:
    """Send a signal to torchrun and all its ranks; False when it had ended by itself."""
    try:
        root = psutil.Process(process.pid)
        family = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        family = []
    alive = process.poll() is None
    for member in family:
        try:
            member.send_signal(number)
        except psutil.NoSuchProcess:
            continue
    process.wait(60)
    psutil.wait_procs(family, timeout=60)
    return alive


def assert_same(one: Path, other: Path) -> None:
    """Assert bit-equal weights and equal history numbers, times and attempts aside."""
    models = [torch.load(path / "model_best.pt", weights_only=True) for path in (one, other)]
    weights = [model["weights"] | model["heads"] for model in models]
    assert list(weights[0]) == list(weights[1])
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), f"{name} differs"
    histories = [json.loads((path / "history.json").read_text()) for path in (one, other)]
    for history in histories:
        for key in TIMES:
            del history[key]
    assert histories[0] == histories[1]
    assert models[0]["best"] == models[1]["best"]
