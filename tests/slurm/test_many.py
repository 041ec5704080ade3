"""Several nodes for one run, and several runs at once."""

import signal
import time

import pytest
from killing import assert_same
from on_cluster import FAST, agents, command

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


def test_two_nodes_lose_one_and_end_on_one(workflow, undisturbed, record_property) -> None:
    """The kill of one torchrun ends the attempt on both nodes; the retry goes on, and so on one."""
    work = workflow(nodes=2, processes=2)
    work.start()
    job, position = None, (0, 0)
    for number, which in enumerate(("second", "first"), 1):  # where the ranks meet: on the first
        job = work.training_job(other_than=job)
        position = work.until_trained(more_than=position)
        both = agents(job)
        assert len(both) == 2
        began = time.monotonic()
        both[sorted(both)[which == "second"]].send_signal(signal.SIGKILL)
        work.until(lambda job=job: not agents(job), "the other torchrun ends", timeout_s=30)
        other_s = time.monotonic() - began
        work.seconds_until("Trying to restart job", times=number)
        seconds = time.monotonic() - began
        told = f"the other ended {other_s:.1f} s later, retried after {seconds:.0f} s"
        record_property(f"torchrun of the {which} of two nodes killed", told)
    job = work.training_job(other_than=job)
    position = work.until_trained(more_than=work.progress((-1, -1)))
    work.stop()
    # as a user does who gets no two nodes any more: the same ranks on one
    work.config["launch"] |= {"nodes": 1, "processes": 4}
    work.wait_s(FAST)
    work.start("--rerun-incomplete")
    work.finish()
    assert work.events.count("resumed: ") == 3
    last = work.attempts[-1]
    assert (last["from_epoch"], last["from_step"]) >= position
    assert_same(work.folder, undisturbed(work.config, world_size=4))


def test_six_runs_at_once_each_killed(workflow, undisturbed) -> None:
    """A sweep: every run loses its first job, and ends with its own bits."""
    rates = [0.01, 0.003, 0.001]
    axes = {"training.learning_rate": rates}
    sweep = {"parameters": axes, "replicates": {"training.seed": [0, 1]}}
    work = workflow(changes={"sweep": sweep})
    work.start()
    names = [f"learning_rate={rate}__seed={seed}" for rate in rates for seed in (0, 1)]
    for name in names:
        work.until(lambda name=name: work.progress((0, 0), name), f"{name} trains")
    first = [job for job, state, _ in work.jobs() if state == "RUNNING"]
    assert len(first) == 6
    command("scancel", *first)
    for job in first:
        work.until_ended(job)
    work.wait_s(FAST)
    work.finish()
    assert len(work.jobs()) == 12, work.jobs()
    for name, rate, seed in zip(names, [r for r in rates for _ in (0, 1)], [0, 1] * 3, strict=True):
        assert "resumed: " in (work.run(name) / "events.log").read_text()
        training = {**work.config["training"], "learning_rate": rate, "seed": seed}
        config = {**work.config, "training": training}
        assert_same(work.run(name), undisturbed(config))


def test_gpus_of_the_type_in_the_profile_are_asked_for(workflow) -> None:
    """SLURM hands them out; a node without CUDA is an error, and no training on the CPU."""
    gpu_model = ("--set-resources", "train:gpu_model=a100")
    gpus = {"launch": {"device": "auto", "processes": 2}, "resources": {"gpus": 2}}
    work = workflow("--retries", "0", *gpu_model, changes=gpus)
    work.start()
    job = work.training_job()
    assert "NumNodes=1 " in command("scontrol", "show", "job", job)
    assert "TresPerJob=gres:gpu:a100:2" in command("scontrol", "show", "job", job)
    assert work.wait() == 1
    log = (work.workdir / "logs/kills/train/run.log").read_text()
    assert "launch.device: cuda with rank 0 of this node, and the node shows 0 GPU(s)" in log
