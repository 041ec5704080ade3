"""The walltime, again and again, on a real SLURM: the bits are those of an undisturbed run."""

from itertools import pairwise

import pytest
from killing import assert_same
from on_cluster import FAST, end_at_walltime, states_seen

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_three_walltimes_without_a_warning(workflow, undisturbed, record_property) -> None:
    """No deadline is known and no signal comes: SIGKILL, TIMEOUT, retry, on from the last save."""
    work = workflow(environment={"OUTLAST_DEADLINE": "none"})
    work.wait_s(
        3
    )  # SLURM lets an attempt live for half a minute more: too short to come to the end
    work.start()
    job, position = None, (0, 0)
    for number in (1, 2, 3):
        job = work.training_job(other_than=job)
        work.until_trained(more_than=position)
        end_at_walltime(job)
        assert work.until_ended(job) == "TIMEOUT"
        seconds = work.seconds_until("Trying to restart job", times=number)
        record_property("walltime", f"noticed and retried {seconds:.0f} s later")
        position = work.progress((-1, -1))
    work.wait_s(FAST)
    work.finish()
    assert states_seen(work.output) == ["TIMEOUT"] * 3
    starts = [(line["from_epoch"], line["from_step"]) for line in work.attempts]
    assert len(starts) == 4
    assert all(one < following for one, following in pairwise(starts)), starts
    assert work.events.count("resumed: ") == 3
    assert "walltime is near" not in work.events
    assert_same(work.folder, undisturbed(work.config))


def test_three_walltimes_foreseen(workflow, undisturbed) -> None:
    """The run asks SLURM for its end, saves and leaves before: no step is lost."""
    work = workflow(processes=2)
    work.wait_s(2)
    work.start()
    job = None
    for _ in range(3):
        job = work.training_job(other_than=job)
        end_at_walltime(job, in_s=40)  # some 8 to start, 18 to leave
        assert work.until_ended(job) == "FAILED", "SLURM had to end it"
    work.wait_s(FAST)
    work.finish()
    assert work.events.count("the walltime is near") == 3
    attempts = work.attempts
    assert len(attempts) == 4
    for one, following in pairwise(attempts):
        assert (one["epoch"], one["step"]) == (following["from_epoch"], following["from_step"])
    log = work.workdir / "logs/kills/train/run.log"
    assert "Traceback" not in log.read_text()
    assert_same(work.folder, undisturbed(work.config, world_size=2))
