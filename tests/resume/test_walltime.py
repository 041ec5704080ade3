"""The walltime, known beforehand: the run saves and leaves in time, and loses no step."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Run, assert_same

Undisturbed = Callable[[int], Path]


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_leaves_before_its_deadline(
    world_size: int,
    data: Path,
    undisturbed: Undisturbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself, in one line, with a failure for Snakemake; the next goes on where it was."""
    run = Run(tmp_path / "run", data, world_size=world_size, every_seconds=1e6, wait_s=0.4)
    deadline = time.time() + 24  # some 6 to start, 4 to train, 10 to leave
    monkeypatch.setenv("OUTLAST_DEADLINE", str(deadline))
    process = run.start()
    assert process.wait(60) not in (0, None), run.log
    assert time.time() < deadline
    (said,) = [line for line in run.log.splitlines() if "interrupted" in line]
    where = re.search(r"the walltime is near: .* in epoch (\d) after step (\d) of 7", said)
    assert where is not None, said
    assert "the state is saved" in said
    assert "Traceback" not in run.log
    monkeypatch.delenv("OUTLAST_DEADLINE")
    run.wait_s = 0.02
    run.finish()
    assert f"resumed: epoch {where[1]}, after step {where[2]}" in run.log
    assert_same(run.folder, undisturbed(world_size))
    lines = [json.loads(line) for line in (run.folder / "attempts.jsonl").read_text().splitlines()]
    assert [line["state"] for line in lines] == ["interrupted", "completed"]
    assert (lines[0]["epoch"], lines[0]["step"]) == (lines[1]["from_epoch"], lines[1]["from_step"])
