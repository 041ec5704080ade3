"""Injection points: named in one place, silent without the variable, exact with it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.faults import POINTS, Fault, parse

SOURCE = Path(__file__).parents[2] / "src" / "outlast"


def test_every_point_is_passed_somewhere() -> None:
    """What the table names is in the code, and the other way round."""
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "faults.py")
    assert set(re.findall(r'reach\("(\w+)"\)', code)) == set(POINTS)


def test_the_variable_is_read_in_one_place() -> None:
    """No other module looks at it."""
    readers = [path.name for path in SOURCE.rglob("*.py") if "OUTLAST_FAULT" in path.read_text()]
    assert readers == ["faults.py"]


def test_a_line_describes_several_faults() -> None:
    """Left out: the first time, once, rank 0, that rank alone."""
    first, second = parse(
        "point=fsync do=EIO; point=batch at=3 times=2 rank=1 do=SIGSTOP to=all for=2"
    )
    assert first == Fault("fsync", "EIO")
    assert second == Fault("batch", "SIGSTOP", at=3, times=2, rank=1, to="all", for_s=2.0)
    assert parse("") == []


@pytest.mark.parametrize(
    "line", ["point=nowhere do=EIO", "point=fsync", "point=fsync do=SIGNONE", "point=fsync do=EX",
             "point=fsync do=EIO to=nobody", "point=fsync do=EIO at=x", "fsync"]
)  # fmt: skip
def test_a_misspelt_line_is_refused(line: str) -> None:
    """At once, not when it should have happened."""
    with pytest.raises(ValueError, match="OUTLAST_FAULT"):
        parse(line)


def test_a_fault_comes_at_its_time_and_so_often() -> None:
    """The third and the fourth time of five."""
    fault = Fault("write", "EIO", at=3, times=2)
    assert [fault.is_due() for _ in range(5)] == [False, False, True, True, False]


def _pass(points: str, fault: str, rank: int = 0) -> "subprocess.CompletedProcess[str]":
    loop = f"for point in {points.split()}: reach(point); print(point)"
    script = f"from outlast.faults import reach\n{loop}"
    environment = {**os.environ, "OUTLAST_FAULT": fault, "RANK": str(rank)}
    return subprocess.run(
        [sys.executable, "-u", "-c", script], env=environment, capture_output=True, text=True
    )


def test_a_process_dies_where_it_is_told() -> None:
    """The second `write` of rank 1; rank 0 passes."""
    line = "point=write at=2 rank=1 do=SIGKILL"
    died = _pass("write fsync write replace", line, rank=1)
    assert (died.returncode, died.stdout.split()) == (-signal.SIGKILL, ["write", "fsync"])
    assert _pass("write fsync write replace", line).stdout.split()[-1] == "replace"


def test_an_error_of_the_disk_is_raised() -> None:
    """As the file system would."""
    failed = _pass("write fsync", "point=fsync do=ENOSPC")
    assert "OSError: [Errno 28] No space left on device" in failed.stderr
    assert failed.stdout.split() == ["write"]


def test_a_paused_process_goes_on() -> None:
    """SIGSTOP is followed by SIGCONT."""
    assert _pass("batch step", "point=batch do=SIGSTOP for=0.1").stdout.split() == ["batch", "step"]


def test_no_signal_goes_to_whoever_is_not_torchrun() -> None:
    """A rank that was started by hand has a shell above it."""
    failed = _pass("batch", "point=batch do=SIGKILL to=torchrun")
    assert "needs a rank that torchrun has started" in failed.stderr
