"""The verbs of the command line: what a mistake looks like."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outlast import cli

SMALL = {"data": {"source": "iris"}, "training": {"epochs": 1}, "launch": {"device": "cpu"}}


def text(**sections: Any) -> str:
    """An experiment as the rules pass it: JSON in place of a file."""
    return json.dumps({**SMALL, **sections})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The irises, prepared by the command line."""
    folder = tmp_path_factory.mktemp("iris") / "data"
    assert cli.main(["prepare", "--config", text(), "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("verb", "config", "said"),
    [
        ("prepare", "absent.yaml", r"problem in absent.yaml:\n  - cannot be read: No such file"),
        ("prepare", "{broken", r"problem in --config:\n  - no valid JSON"),
        ("prepare", text(), r"File exists: '.*taken'"),
        ("train", text(), r"File exists: '.*taken'"),
        (
            "train",
            text(sweep={"replicates": {"training.seed": [1, 2]}}),
            "--run-name: none was named; there are: seed=1, seed=2",
        ),
    ],
)
def test_a_mistake_is_one_message(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    config: str,
    said: str,
) -> None:
    """On the error output, without a traceback, with exit code 1."""
    (tmp_path / "taken").write_text("a file")
    arguments = [verb, "--config", config, "--out", str(tmp_path / "taken")]
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        assert cli.main([*arguments, *(["--data", str(data)] if verb == "train" else [])]) == 1
    finally:
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    assert re.search(said, error), error


def test_ctrl_c_ends_a_verb_without_a_traceback(tmp_path: Path) -> None:
    """One word, and the exit code that a shell expects of an interrupted command."""
    fifo = tmp_path / "wait.yaml"
    os.mkfifo(fifo)  # reading it waits for ever: it is held open and nothing is written
    command = [sys.executable, "-m", "outlast", "prepare", "--config", str(fifo), "--out", "x"]
    # a shell lets what it starts with & ignore Ctrl-C, this process and the child perhaps
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    deadline, writer = time.monotonic() + 30, None
    while writer is None:
        assert time.monotonic() < deadline, "it never came to read its config"
        with contextlib.suppress(OSError):
            writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    os.close(writer)
    assert error == "interrupted\n"
    assert process.returncode == 130
