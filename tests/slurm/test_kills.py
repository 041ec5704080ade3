"""What else ends a job on SLURM: each is retried, noticed in a time that is told, and exact."""

import time

import cluster as small_slurm
import pytest
from killing import assert_same
from on_cluster import FAST, PROFILE, agents, command, squeue, states_seen

# a job for which those of the partition low have to give way
URGENT = ("--partition=high", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_scancel_with_the_profile_as_it_is(workflow, undisturbed, record_property) -> None:
    """Snakemake itself, which looks rarely: it notices, and starts the next attempt."""
    work = workflow()
    work.start(quick=False)
    job = work.training_job()
    work.until_trained()
    command("scancel", job)
    seconds = work.seconds_until("Trying to restart job")
    work.wait_s(FAST)
    work.finish()
    record_property(
        "scancel", f"noticed and retried {seconds:.0f} s later, with the profile as it is"
    )
    assert states_seen(work.output) == ["CANCELLED"]
    assert work.events.count("resumed: ") == 1
    assert_same(work.folder, undisturbed(work.config))


def test_scontrol_requeue_is_refused(workflow, undisturbed) -> None:
    """The profile says so: Snakemake and SLURM would both start the next attempt."""
    work = workflow()
    work.start()
    job = work.training_job()
    work.until_trained()
    with pytest.raises(AssertionError, match="disabled"):
        command("scontrol", "requeue", job)
    work.wait_s(FAST)
    work.finish()
    assert len(work.jobs()) == 1
    assert_same(work.folder, undisturbed(work.config))


def test_a_node_dies(workflow, undisturbed, record_property) -> None:
    """With all that ran on it: SLURM finds out, and the next attempt goes on elsewhere."""
    work = workflow("--default-resources", "slurm_partition=brittle")
    work.start()
    job = work.training_job()
    work.until_trained()
    ((_, _, node),) = work.jobs()
    small_slurm.node_down(node)
    seconds = work.seconds_until("Trying to restart job")
    record_property(
        "dead node", f"noticed and retried {seconds:.0f} s later (SlurmdTimeout is 20 s)"
    )
    work.training_job(other_than=job)
    work.wait_s(FAST)
    work.finish()
    small_slurm.node_up(node)
    assert states_seen(work.output) == ["NODE_FAIL"]
    assert len({where for _, _, where in work.jobs()}) == 2
    assert work.events.count("resumed: ") == 1
    assert_same(work.folder, undisturbed(work.config))


def test_a_node_is_cut_off_and_trains_on(workflow, undisturbed) -> None:
    """SLURM takes it for dead: the next attempt takes the run over, and the old one leaves."""
    work = workflow("--default-resources", "slurm_partition=cut")
    work.wait_s(3)  # or the old attempt has ended before SLURM misses its node
    work.start()
    job = work.training_job()
    work.until_trained()
    ((_, _, node),) = work.jobs()
    (old,) = agents(job).values()
    small_slurm.node_cut_off(node)
    work.training_job(other_than=job)
    position = work.progress((-1, -1))
    work.until_trained(more_than=position)
    old.wait(60)  # by itself: SLURM cannot reach it
    work.wait_s(FAST)
    work.finish()
    small_slurm.node_up(node)
    assert states_seen(work.output) == ["NODE_FAIL"]
    assert work.events.count("resumed: ") == 1
    assert_same(work.folder, undisturbed(work.config))


def test_out_of_memory_with_memory_that_grows(
    workflow, undisturbed, tmp_path, record_property
) -> None:
    """The second attempt asks for twice as much, has enough, and goes on from the last save."""
    hog = tmp_path / "hog"
    hog.write_text("0")
    memory = {"mem_mb": 1500, "mem_grows": True}
    work = workflow(changes={"resources": memory}, environment={"OUTLAST_TEST_HOG_MB": str(hog)})
    work.start()
    work.until_trained()
    hog.write_text("1200")
    seconds = work.seconds_until("Trying to restart job")
    record_property("out of memory", f"noticed and retried {seconds:.0f} s later")
    work.wait_s(FAST)
    work.finish()
    assert states_seen(work.output) in (["OUT_OF_MEMORY"], ["FAILED"])
    assert len(work.jobs()) == 2
    assert work.events.count("resumed: ") == 1
    assert_same(work.folder, undisturbed(work.config))


def test_a_preempted_job_goes_on_by_itself(workflow, undisturbed) -> None:
    """In a partition whose jobs give way: requeued by SLURM, without an attempt of Snakemake's."""
    work = workflow("--default-resources", "slurm_partition=low")
    work.profile = work.workdir / "profile"
    work.profile.mkdir()
    settings = (PROFILE / "config.yaml").read_text()
    assert settings.count("\nslurm-no-requeue: true") == 1
    settings = settings.replace("\nslurm-no-requeue: true", "\nslurm-requeue: true")
    (work.profile / "config.yaml").write_text(settings)
    work.start()
    job = work.training_job()
    work.until_trained()
    command("sbatch", *URGENT)
    work.until(lambda: work.jobs()[0][1] == "PENDING", "the job gives way")
    work.wait_s(FAST)
    work.finish()
    assert [name for name, _, _ in work.jobs()] == [job], "the same job, twice"
    assert "Trying to restart" not in work.output
    assert len(work.attempts) == 2
    assert work.events.count("resumed: ") == 1
    assert_same(work.folder, undisturbed(work.config))


def test_a_preempted_job_that_slurm_gives_up_is_tried_again(workflow, undisturbed) -> None:
    """The plugin alone waits for it for ever."""
    work = workflow("--default-resources", "slurm_partition=low")
    work.start()
    job = work.training_job()
    work.until_trained()
    command("sbatch", *URGENT)
    assert work.until_ended(job) == "PREEMPTED"
    work.wait_s(FAST)
    work.finish()
    assert "it was preempted" in work.output
    assert len(work.jobs()) == 2
    assert work.events.count("resumed: ") == 1
    assert_same(work.folder, undisturbed(work.config))


def test_snakemake_is_killed_while_a_job_runs(workflow, undisturbed) -> None:
    """Its job trains on. The job of the next Snakemake waits for it, and never trains beside it."""
    work = workflow()
    work.start()
    orphan = work.training_job()
    work.until_trained()
    work.kill()
    work.start("--unlock")
    work.finish()
    work.start()
    work.training_job(other_than=orphan)
    work.until(lambda: "waiting until it ends" in work.events, "the second waits")
    assert f"job {orphan}" in work.events, "it says for whom"
    work.wait_s(FAST)
    work.finish()
    assert work.events.count("epoch 3/3") == 1
    assert_same(work.folder, undisturbed(work.config))


@pytest.mark.alone
def test_slurm_takes_no_job_for_a_while(workflow, undisturbed) -> None:
    """Slurmctld is away when the first job is submitted: that costs no retry."""
    work = workflow("--retries", "0")
    work.wait_s(FAST)
    small_slurm.controller_down()
    try:
        work.start(wholly=True)
        work.seconds_until("SLURM takes no job of prepare now", times=2)
    finally:
        small_slurm.controller_up()
    work.finish()
    assert "Unable to contact slurm controller" in work.output
    assert "Error in rule" not in work.output
    assert_same(work.folder, undisturbed(work.config))
    for name in ("leaderboard.tsv", "confusion.png", "runs/run/curves.png"):
        assert (work.workdir / "results/kills" / name).stat().st_size > 0
    comments = squeue("--states=all", "--format=%k|%Z").splitlines()
    evaluated = f"rule_evaluate_wildcards_kills_run|{work.workdir}"
    assert evaluated in comments, "evaluate was a job, too"


@pytest.mark.alone
def test_slurmctld_is_away_while_a_job_runs(workflow, undisturbed) -> None:
    """Snakemake's looks fail; it must not forget the job."""
    work = workflow("--verbose")
    work.start()
    work.training_job()
    work.until_trained()
    small_slurm.controller_down()
    try:
        work.seconds_until("SLURM query command failed")
        time.sleep(10)
    finally:
        small_slurm.controller_up()
    work.wait_s(FAST)
    work.finish()
    assert len(work.jobs()) == 1
    assert_same(work.folder, undisturbed(work.config))


def test_ctrl_c_while_jobs_are_submitted_leaves_none(workflow) -> None:
    """The plugin cancels those that it knows, and submits the rest."""
    seeds = {"replicates": {"training.seed": list(range(30))}}
    work = workflow(changes={"sweep": seeds})
    work.start()
    work.until(lambda: len(work.jobs()) >= 3, "the first are submitted")
    work.stop()
    submitted = len(work.jobs())
    assert submitted < 30, "too late"
    assert {state for _, state, _ in work.jobs()} <= {"CANCELLED", "COMPLETING"}
    time.sleep(3)
    assert len(work.jobs()) == submitted


def test_a_job_that_will_never_start_is_a_failure(workflow) -> None:
    """More minutes than the partition has: SLURM would let it wait for ever."""
    work = workflow("--retries", "1", changes={"resources": {"runtime": 2000}})
    work.start()
    assert work.wait() == 1
    assert work.output.count("it asks for more time than its partition gives") == 2
    left = squeue("--states=all", "--format=%T|%Z").splitlines()
    states = {
        state
        for state, _, folder in (line.partition("|") for line in left)
        if folder == str(work.workdir)
    }
    assert states == {"CANCELLED"}


def test_a_certain_failure_is_not_tried_for_ever(workflow, record_property) -> None:
    """A loss that is not finite: one job finds out, the others refuse, and Snakemake gives up."""
    hopeless = {"learning_rate": 1e38, "grad_accum_split": 1}
    work = workflow("--retries", "2", changes={"training": hopeless})
    work.wait_s(FAST)
    began = time.monotonic()
    work.start()
    assert work.wait() == 1
    record_property(
        "a certain failure", f"given up after {time.monotonic() - began:.0f} s and 3 jobs"
    )
    assert len(work.jobs()) == 3
    assert len(work.attempts) == 3
    log = (work.workdir / "logs/kills/train/run.log").read_text()
    assert "finite" in log
