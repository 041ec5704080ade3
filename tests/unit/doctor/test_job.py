"""The job of `outlast doctor`: sent, answered, judged, and gone afterwards in any case."""

import dataclasses
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm

from outlast.doctor import probe, visit
from outlast.doctor.profile import Profile
from outlast.doctor.verdict import Visit, verdicts

Examine = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A profile by which an ended job has one second to show its files."""
    monkeypatch.setattr(visit, "LEAST_PATIENCE_S", 1)
    return {"latency-wait": 1}


def bad(found: list[tuple[str, str]]) -> list[str]:
    """Return the texts of what is BAD."""
    return [text for word, text in found if word == "BAD"]


def test_a_job_that_answers(examine: Examine, slurm: FakeSlurm) -> None:
    """The real probe, its torch included, through real files."""
    resources = {"slurm_account": "lab", "qos": "long"}
    found = examine(profile={"default-resources": resources, "slurm-reservation": "mine"})
    assert bad(found) == []
    texts = [text for word, text in found[-5:]]
    assert re.match(r"job: ran on \S+ after \d+ s, Python 3", texts[0])
    assert re.match(r"results/: the same folder on \S+; a new file is seen after [01]\.", texts[1])
    assert re.match(r"outlast: \S+ in the job, as here", texts[2])
    assert re.match(r"deadline: squeue answers on \S+: the job had 1[12]\d s left", texts[3])
    assert re.match(r"torch: \S+, imported in \d+ s", texts[4])
    asked = slurm.said("submitted").splitlines()[-1]
    assert "--time=2 " in asked
    assert "--partition=main --account=lab --qos=long --reservation=mine --mem=4000 " in asked
    assert "--gpus" not in asked
    # by name: it is known before sbatch has answered
    assert re.fullmatch(r"--quiet --name=outlast-doctor-\w+\n", slurm.said("cancelled"))


def test_a_job_with_a_gpu(examine: Examine, slurm: FakeSlurm) -> None:
    """One of the profile's model, and torch has to see it."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    config = {"launch": {"processes": 2, "device": "cuda"}, "resources": {"gpus": 2}}
    profile = {"set-resources": {"train": {"gpu_model": "a100"}}}
    (said,) = bad(examine(config=config, profile=profile))
    assert "it sees no GPU, and the job had one" in said
    assert "--gpus=a100:1 --mem=" in slurm.said("submitted").splitlines()[-1]


def test_a_step_that_does_not_start(
    examine: Examine, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job of Snakemake starts one, without SLURM_CONF."""
    monkeypatch.setenv("SLURM_CONF", "/there/slurm.conf")
    assert bad(examine()) == []
    slurm.program("srun", "echo 'Could not establish a configuration source' >&2; exit 1")
    (said,) = bad(examine())
    assert said.startswith("srun: in a job, with the variables that")
    assert "it says: Could not establish a configuration source fix: ask" in said


def test_a_job_that_does_not_start(examine: Examine, slurm: FakeSlurm) -> None:
    """A note, and it is cancelled."""
    slurm.say("jobs", "wait")
    before = time.monotonic()
    word, text = examine("--wait", "0.5")[-1]
    assert (word, time.monotonic() - before < 10) == ("note", True)
    assert text.startswith("job: has not started within 0 s (PENDING, Priority); cancelled fix:")
    assert "--name=outlast-doctor-" in slurm.said("cancelled")


def test_a_folder_that_is_not_shared(
    examine: Examine, slurm: FakeSlurm, impatient: dict[str, Any]
) -> None:
    """The job has ended and left nothing here."""
    slurm.say("jobs", "lose")
    (said,) = bad(examine(profile=impatient))
    assert re.match(r"results/: /\S+ is not the same folder on node1: nothing of what", said)


def test_a_job_that_fails(examine: Examine, slurm: FakeSlurm, impatient: dict[str, Any]) -> None:
    """In the words of its log."""
    slurm.say("jobs", "crash")
    (said,) = bad(examine(profile=impatient))
    assert "failed on node1 (JobState FAILED, Reason None, ExitCode 3:0): No module named" in said


def test_a_job_that_is_refused(examine: Examine, slurm: FakeSlurm) -> None:
    """In the words of sbatch."""
    slurm.say("jobs", "refuse")
    (said,) = bad(examine())
    assert said.startswith(
        "job: sbatch --partition=main --mem=4000: sbatch: error: Invalid account"
    )


def test_ctrl_c(slurm: FakeSlurm, examine: Examine) -> None:
    """Cancels the job and removes the files."""
    examine("--no-job")  # writes profile and experiment
    slurm.say("jobs", "wait")
    command = [sys.executable, "-m", "outlast", "doctor", "experiment.yaml", "--profile", "profile"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        assert b"job 7 on main" in process.stderr.readline()
        assert len(list(Path("results").iterdir())) == 1
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"interrupted\n"
    assert process.returncode == 130
    assert not Path("results").exists()
    assert "--name=outlast-doctor-" in slurm.said("cancelled")


def test_a_probe_that_sees_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: FakeSlurm
) -> None:
    """It says so, and does not wait for ever."""
    monkeypatch.setattr(probe, "SEEN_S", 0.3)
    probe.main(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "answer.json",
        "step.json",
        "torch.json",
    ]
    assert '"token": null' in (tmp_path / "answer.json").read_text()


ANSWER = {
    "token": "t",
    "host": "node1",
    "clock": 1000.0,
    "deadline": 1119.0,
    "python": "3.11.7",
    "version": "1.0",
    "file": "/env/outlast/__init__.py",
    "torchrun": "/env/bin/torchrun",
    "free_bytes": 10**10,
}
TORCH = {"version": "2.13", "gpus": 1, "devices": "0", "seconds": 3.0}
GOOD = Visit(
    answer=ANSWER,
    echo={"heard": 1001.0, "written": 1001.0},
    step={"error": ""},
    torch=TORCH,
    said=1000.0,
    heard=1002.0,
    waited_s=4.0,
    token="t",
    gpus=1,
    minutes=2,
)


def judge(profile: dict[str, Any] | None = None, **changed: Any) -> list[tuple[str, str]]:
    """Return word and text of what is not good about a visit that is good but for this."""
    answer = ANSWER | {key: changed.pop(key) for key in list(changed) if key in ANSWER}
    made = dataclasses.replace(GOOD, **{"answer": answer, **changed})
    lines = verdicts(made, "1.0", Profile(Path("p.yaml"), {"latency-wait": 60, **(profile or {})}))
    return [(line.word, f"{line.subject}: {line.found}") for line in lines if line.word != "ok"]


def test_a_good_visit() -> None:
    """Nothing is said against it."""
    assert judge() == []
    assert judge(gpus=0, torch={**TORCH, "gpus": 0}) == []
    assert judge(deadline=1001.0) == []


VERDICTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "token": ({"answer": {**ANSWER, "token": None}}, "BAD", "results/: a file that was written"),
    "echo": ({"echo": None}, "note", "results/: seen from both sides, but node1 did not see"),
    "slow": ({"heard": 1062.5, "echo": {"heard": 1031.0, "written": 1031.0}}, "BAD", "results/: "),
    "version": ({"version": "0.9"}, "BAD", r"outlast: 0.9 in the job \(/env/.*\), 1.0 here"),
    "torchrun": ({"torchrun": None}, "BAD", "torchrun: is not on the PATH"),
    "no deadline": ({"deadline": None}, "note", "deadline: squeue does not answer on node1"),
    "past": ({"deadline": 999.0}, "BAD", "deadline: squeue says that a job of 120 s ends -1 s"),
    "far": ({"deadline": 4600.0}, "BAD", "deadline: .* ends 3600 s after its start"),
    "no step": ({"step": {"error": "no slurm.conf"}}, "BAD", "srun: .* it says: no slurm.conf"),
    "step": ({"step": None}, "BAD", "srun: .* it says: nothing, and does not end"),
    "no torch": ({"torch": None}, "note", "torch: was not imported within the 2 minutes"),
    "broken": ({"torch": {"error": "OSError: x"}}, "BAD", "torch: cannot be imported .* OSError"),
    "no GPU": ({"torch": {**TORCH, "gpus": 0}}, "BAD", "torch: .* it sees no GPU"),
    "ahead": (
        {"echo": {"heard": 1062.0, "written": 1063.0}},
        "note",
        "clock: node1 is 62 s ahead of",
    ),
    "behind": ({"echo": {"heard": 939.0, "written": 939.0}}, "note", "clock: node1 is 62 s behind"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name: str) -> None:
    """Each answer by itself."""
    changed, word, said = VERDICTS[name]
    if "answer" in changed:
        changed = changed["answer"]
    (found,) = judge(**changed)
    assert found[0] == word
    assert re.match(said, found[1])


def test_torchrun_of_a_conda_environment() -> None:
    """Snakemake activates that one in the job."""
    assert judge({"software-deployment-method": "conda"}, torchrun=None) == []


def test_a_clock_is_not_a_delay() -> None:
    """A file is as fast when the clocks differ by hours; the delay has to fit latency-wait."""
    found = judge(echo={"heard": 4601.0, "written": 4601.0})
    assert [text.partition(":")[0] for _, text in found] == ["clock"]
    found = judge({"latency-wait": 1}, heard=1004.0, echo={"heard": 1002.0, "written": 1002.0})
    assert [word for word, _ in found] == ["BAD"]
