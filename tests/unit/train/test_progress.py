"""What a run says, on the screen and in events.log."""

import logging
from pathlib import Path

import pytest

from outlast.train.progress import EVENTS_LOG, reporting

log = logging.getLogger("outlast")


def test_every_attempt_adds_to_events_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain lines on the screen, the same with their date in the file; no attempt empties it."""
    for line in ("first", "second"):
        with reporting(tmp_path, is_main=True) as progress:
            assert progress is None, "no terminal"
            log.info("%s", line)
    shown = capsys.readouterr().out.splitlines()
    kept = (tmp_path / EVENTS_LOG).read_text().splitlines()
    assert [line.split()[-1] for line in shown] == ["first", "second"]
    assert [line.split()[-1] for line in kept] == ["first", "second"]
    assert "\x1b" not in "".join(shown)


def test_other_ranks_give_their_warnings_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line once, and none lost that matters; rank 0 alone writes the file."""
    with reporting(tmp_path, is_main=False):
        log.info("epoch 1/2")
        log.error("error: of this rank")
    assert capsys.readouterr().out.splitlines()[0].endswith("error: of this rank")
    assert not (tmp_path / EVENTS_LOG).exists()


@pytest.mark.parametrize("target", ["/dev/full", "a folder", "absent/events.log"])
def test_an_events_log_that_cannot_be_written_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """A full disk costs its lines, and neither the run nor the screen full of tracebacks."""
    (tmp_path / "a folder").mkdir()
    (tmp_path / EVENTS_LOG).symlink_to(target)
    with reporting(tmp_path, is_main=True):
        log.info("epoch 1/2")
        log.info("epoch 2/2")
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 2
    assert output.err == ""
