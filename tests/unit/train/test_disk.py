"""A disk that is full, read-only or broken: the old state is intact, and training goes on."""

import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import small_run
import torch
from small_run import make_trainer, small_config, small_data

from outlast.train.state import Position

# Trains on a file system of two megabytes, on which nothing can be written from epoch 2 to epoch 4.
ON_A_BAD_DISK = """
import logging, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from small_run import make_trainer
import torch
from outlast.train import ledger
ledger.SIGN_OF_LIFE_S = 0  # writes its status at each step
what, folder, log = sys.argv[1], Path(sys.argv[2]), logging.getLogger("outlast")
filler = folder / "filler"

def remount(how):
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)

def fill():
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                pass

class Disk(logging.Handler):
    def emit(self, record):
        line = record.getMessage()
        print(line, flush=True)
        if line.startswith("epoch 2/"):
            fill() if what == "full" else remount("ro")
        if line.startswith("epoch 4/"):
            state = torch.load(folder / "run" / "model_resume.pt", weights_only=True)
            names = sorted(path.name for path in (folder / "run").iterdir())
            print("on the disk:", state["epoch"], names)
            filler.unlink() if what == "full" else remount("rw")

log.addHandler(Disk())
log.setLevel(logging.INFO)
history = make_trainer(folder / "run", epochs=5, learning_rate=0.3).train(5, 0)
print("epochs:", history["epoch"])
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a small disk")
@pytest.mark.parametrize(
    ("what", "error"), [("full", "No space left on device"), ("read-only", "Read-only file system")]
)
def test_a_bad_disk_costs_a_warning(what: str, error: str, tmp_path: Path) -> None:
    """For two epochs: warned each time, old state intact, training goes on (story 15)."""
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    shell = 'mount -t tmpfs -o size=2m tmpfs "$1" && shift && exec "$@"'
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run([*mount, shell, "sh", disk, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    script = [sys.executable, "-c", ON_A_BAD_DISK, what, disk, Path(small_run.__file__).parent]
    done = subprocess.run([*mount, shell, "sh", disk, *script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    warned = [line for line in lines if line.startswith("state not saved")]
    assert len(warned) == 2, done.stdout
    assert error in warned[0]
    assert "going on" in warned[0]
    (kept,) = (line for line in lines if line.startswith("on the disk: "))
    assert kept.startswith("on the disk: 1 "), kept
    assert "outlast-tmp" not in kept
    assert lines[-1] == "epochs: [1, 2, 3, 4, 5]"


def test_a_folder_removed_under_the_run_is_made_again(tmp_path: Path, said: list[str]) -> None:
    """What was in it is gone; the state of the next save and the outputs are not."""
    trainer = make_trainer(tmp_path / "run")

    def remove(*_: object) -> None:
        if trainer.run.position == Position(1, 2, trainer.run.position.train_seconds):
            trainer._keeper._writer.drain()  # a write that is hit by it is told, and that is right
            shutil.rmtree(tmp_path / "run")

    trainer.model.register_forward_pre_hook(remove)
    expected = make_trainer(tmp_path / "straight").train(3)
    assert trainer.train(3)["train_loss"] == expected["train_loss"]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model_best.pt", "history.json", "model_resume.pt"} <= names
    assert not any("not saved" in line for line in said)


def test_a_file_system_that_cannot_sync_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO of fsync: the state before is whole, its name leads to it, and training goes on."""
    monkeypatch.setattr(logging.getLogger("outlast"), "propagate", True)
    trainer = make_trainer(tmp_path, small_data(train=3200), small_config(1e6, batch_size=8))
    trainer.train_epoch()
    trainer._keeper.save(wait=True)
    before = (tmp_path / "model_resume.pt").read_bytes()

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", broken)
        assert not trainer._keeper.save(wait=True)
    assert (tmp_path / "model_resume.pt").read_bytes() == before
    assert "state not saved ([Errno 5] Input/output error): the files are as before" in caplog.text
    assert not list(tmp_path.glob("*outlast-tmp*"))
    assert trainer._keeper.save(wait=True)


def test_a_folder_that_cannot_sync_is_told_as_it_is(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is there: nobody says that the files are as before, or goes on from older."""
    trainer = make_trainer(tmp_path, small_data(train=3200), small_config(1e6, batch_size=8))
    trainer._keeper.save(wait=True)
    before = (tmp_path / "model_resume.pt").read_bytes()
    trainer.train_epoch()
    real = os.fsync

    def broken(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", broken)
        assert trainer._keeper.save(wait=True)
    assert torch.load(tmp_path / "model_resume.pt", weights_only=True)["step"] == 400
    assert trainer._keeper._saved == (0, 400)
    assert (tmp_path / "model_resume.pt").read_bytes() != before
    (line,) = (line for line in said if line.startswith("WARNING"))
    assert "state written, but not confirmed by the disk ([Errno 5] Input/output error)" in line
    assert not list(tmp_path.glob("*outlast-tmp*"))
