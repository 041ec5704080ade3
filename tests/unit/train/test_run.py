import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.config import parse
from outlast.data.store import prepare
from outlast.sections import Config, TrainingSection
from outlast.train.claim import Claim
from outlast.train.interrupt import Interrupt
from outlast.train.run import EXIT_INTERRUPTED, build_optimizer, train_run


def iris(**training: Any) -> Config:
    """A config that trains in a moment."""
    keys = {"epochs": 2, "batch_size": 32, **training}
    return parse({"data": {"source": "iris"}, "training": keys, "launch": {"device": "cpu"}})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The irises, prepared."""
    folder = tmp_path_factory.mktemp("iris") / "data"
    prepare(iris().data, folder)
    return folder


def test_a_finished_run_gives_0(data: Path, tmp_path: Path) -> None:
    """Both declared outputs are there, and events.log has a line per epoch."""
    assert train_run(iris(), data, tmp_path / "run", Interrupt()) == 0
    assert json.loads((tmp_path / "run" / "history.json").read_text())["stopped"] == "completed"
    assert (tmp_path / "run" / "model_best.pt").stat().st_size > 0
    log = (tmp_path / "run" / "events.log").read_text()
    assert "epoch 1/2" in log
    assert "epoch 2/2" in log


def test_an_interrupted_run_gives_75(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal and the position are named; the events of both attempts stay in events.log."""
    interrupt = Interrupt()
    interrupt.received = signal.SIGTERM
    assert train_run(iris(), data, tmp_path, interrupt) == EXIT_INTERRUPTED == 75
    assert "SIGTERM: interrupted in epoch 1 after step 1 of 4" in capsys.readouterr().out
    assert train_run(iris(), data, tmp_path, Interrupt()) == 0
    log = (tmp_path / "events.log").read_text()
    assert "SIGTERM: interrupted" in log
    assert "resumed: epoch 1, after step 1" in log


def test_an_error_gives_1_and_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network that cannot be built ends the run with its message, before anything is trained."""
    config = iris().model_copy(update={"model": iris().model.model_copy(update={"network": "a:B"})})
    assert train_run(config, data, tmp_path, Interrupt()) == 1
    output = capsys.readouterr().out
    assert "error: model.network: a:B cannot be imported" in output
    assert "Traceback" not in output
    lines = (tmp_path / "attempts.jsonl").read_text().splitlines()
    (line,) = [json.loads(line) for line in lines]
    assert (line["attempt"], line["state"], line["from_step"]) == (1, "failed", None)
    assert line["reason"].startswith("model.network: a:B cannot be imported")
    assert json.loads((tmp_path / "status.json").read_text()) == line
    assert train_run(iris(), data, tmp_path, Interrupt()) == 0
    assert json.loads((tmp_path / "history.json").read_text())["attempts"] == 2


def test_a_kill_while_it_is_built_has_its_line(data: Path, tmp_path: Path) -> None:
    """The status says running from the moment that the folder is claimed."""

    class Kill(BaseException):
        """Comes while the data are opened."""

    def look(*_: Any) -> None:
        status = json.loads((tmp_path / "status.json").read_text())
        assert (status["attempt"], status["state"]) == (1, "running")
        raise Kill

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outlast.train.run.open_data", look)
        patch.setattr("outlast.train.ledger.Ledger.fail", lambda *_: None)
        with pytest.raises(Kill):
            train_run(iris(), data, tmp_path, Interrupt())
    assert train_run(iris(), data, tmp_path, Interrupt()) == 0
    lines = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    assert [(line["attempt"], line["state"]) for line in lines] == [(1, "killed"), (2, "completed")]


def test_an_attempt_that_only_waited_writes_into_no_book(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those of the attempt that it waited for; when it has its turn, it has its line."""
    claim, waiting = Claim(tmp_path), Interrupt()
    assert claim.try_acquire() is None
    waiting.received = signal.SIGTERM
    assert train_run(iris(), data, tmp_path, waiting) == EXIT_INTERRUPTED
    assert "interrupted while waiting for process" in capsys.readouterr().out
    for name in ("attempts.jsonl", "status.json", "failure.json"):
        assert not (tmp_path / name).exists()
    claim.release()
    assert train_run(iris(), data, tmp_path, Interrupt()) == 0
    (line,) = (tmp_path / "attempts.jsonl").read_text().splitlines()
    assert json.loads(line)["attempt"] == 1


def test_outputs_that_cannot_be_written_give_1(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a folder for history.json: the reason in one line; the next start is complete."""
    (tmp_path / "history.json").mkdir()
    assert train_run(iris(), data, tmp_path, Interrupt()) == 1
    output = capsys.readouterr().out
    assert "error: [Errno 21] Is a directory" in output
    (tmp_path / "history.json").rmdir()
    assert train_run(iris(), data, tmp_path, Interrupt()) == 0
    assert "already complete: 2 epochs" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["history.json", "model_best.pt"])
def test_a_disk_that_is_full_at_the_end_is_told_with_the_file(
    name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of a write names none; nothing is lost, and the line says so."""

    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    what = {
        "history.json": "outlast.train.outputs.write_json",
        "model_best.pt": "outlast.train.outputs.ModelFile.save",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what[name], fill)
        assert train_run(iris(), data, tmp_path / "run", Interrupt()) == 1
    # as one line, whatever the width of the terminal
    output = " ".join(capsys.readouterr().out.split())
    assert "error: [Errno 28] No space left on device:" in output
    log = (tmp_path / "run" / "events.log").read_text()
    expected = (
        f"'{tmp_path}/run/{name}'; make room, and start the run again: what is saved in"
        f" {tmp_path}/run is kept"
    )
    assert expected in log
    assert train_run(iris(), data, tmp_path / "run", Interrupt()) == 0
    assert "already complete: 2 epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2, fused=False)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.2, fused=False)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.7, weight_decay=0.2)),
    ],
)
def test_the_optimizer_is_the_one_of_torch(name: str, reference: Any) -> None:
    """Three steps of the fused form are those of the plain one; frozen weights stay."""
    section = TrainingSection(optimizer=name, learning_rate=0.1, weight_decay=0.2, momentum=0.7)
    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    theirs.load_state_dict(ours.state_dict())
    for network in (ours, theirs):
        network[1].bias.requires_grad_(False)
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    pairs = ((ours, build_optimizer(section, ours)), (theirs, reference(trained)))
    rows = torch.randn(8, 3)
    for network, optimizer in pairs:
        for _ in range(3):
            optimizer.zero_grad()
            network(rows).square().mean().backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_complex_weights_are_trained_without_fusing(name: str) -> None:
    """Torch has no fused form for them, and nobody asked for one."""
    network = torch.nn.Linear(2, 1, dtype=torch.complex64)
    before = network.weight.detach().clone()
    optimizer = build_optimizer(TrainingSection(optimizer=name), network)
    network(torch.ones(3, 2, dtype=torch.complex64)).abs().sum().backward()
    optimizer.step()
    assert not torch.equal(network.weight, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_weights_of_every_precision_take_the_steps_of_float64(
    name: str, momentum: float, dtype: torch.dtype
) -> None:
    """Up to rounding, of few and of many numbers: torch's fused SGD on a CPU gets half wrong."""
    section = TrainingSection(optimizer=name, learning_rate=0.05, momentum=momentum)
    for length in (5, 33, 1000):
        torch.manual_seed(0)
        start, steps = torch.randn(length), torch.randn(6, length)
        found = []
        for precision in (dtype, torch.float64):
            network = torch.nn.Module()
            network.single = torch.nn.Parameter(torch.zeros(3))
            network.weight = torch.nn.Parameter(start.to(precision, copy=True))
            optimizer = build_optimizer(section, network)
            for step in steps:
                network.single.grad = torch.ones(3)
                network.weight.grad = step.to(precision)
                optimizer.step()
            found.append(network.weight.detach().double())
        assert (found[0] - found[1]).abs().max() < 10 * torch.finfo(dtype).eps


def test_a_rank_without_a_device_says_so_itself(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 may be on a node that has GPUs."""
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "100")
    monkeypatch.setenv("WORLD_SIZE", "101")
    config = iris()
    launch = config.launch.model_copy(update={"device": "cuda"})
    config = config.model_copy(update={"launch": launch})
    assert train_run(config, data, tmp_path / "run", Interrupt()) == 1
    said = "".join(capfd.readouterr())
    assert "launch.device: cuda with rank 100 of this node, and the node shows" in said


def test_other_ranks_than_asked_for_are_an_error(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A job with fewer nodes must not train as if nothing were."""
    assert train_run(iris(), data, tmp_path / "run", Interrupt(), world_size=4) == 1
    said = "".join(capfd.readouterr())
    assert "ask for 4 ranks, and torchrun has started 1" in said
