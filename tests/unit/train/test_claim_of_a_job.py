"""The claim of a SLURM job, as another attempt sees it with squeue."""

import json
import os
from pathlib import Path

import pytest

from outlast import slurm
from outlast.train import owner as owner_module
from outlast.train.claim import Claim

UNKNOWN = """\
#!/bin/sh
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""


def put_squeue(tools: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a squeue first in the path."""
    tools.mkdir()
    (tools / "squeue").write_text(text)
    (tools / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")


def put_claim(run: Path, job: str | None, cluster: str | None) -> None:
    """Write the claim of an owner on another machine."""
    run.mkdir()
    (run / ".writer-000001-else").mkdir()
    owner = {"token": "else", "beat": 0, "released": False, "job": job, "cluster": cluster}
    (run / ".claim-000001.json").write_text(json.dumps(owner))


@pytest.mark.parametrize(
    ("his", "ours", "lives"),
    [
        ("red", "red", False),
        ("red", "blue", True),
        (None, "blue", True),
        ("red", None, True),
        (None, None, False),
    ],
)
def test_only_the_slurm_of_his_cluster_is_believed(
    his: str | None, ours: str | None, lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared file system another cluster may look: it knows no such job, or another one."""
    run = tmp_path / "run"
    put_squeue(tmp_path / "bin", UNKNOWN, monkeypatch)
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    if his:
        monkeypatch.setenv("SLURM_CLUSTER_NAME", his)
    assert owner_module.this_process()["cluster"] == his
    put_claim(run, "12", his)
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    if ours:
        monkeypatch.setenv("SLURM_CLUSTER_NAME", ours)
    claim = Claim(run)
    assert (claim.try_acquire() is not None) == lives
    claim.release()


def test_an_answer_in_no_known_letters_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a squeue that is not quite one: the job counts as running."""
    answer = "#!/bin/sh\nprintf '\\377\\n'; printf '\\376\\n' >&2\n"
    put_squeue(tmp_path / "bin", answer, monkeypatch)
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    put_claim(tmp_path / "run", "11", None)
    assert Claim(tmp_path / "run").try_acquire()


# as squeue(1) does, with a user who looks at PENDING jobs only
OF_A_STATE = """\
#!/bin/sh
echo "$@" >> {folder}/asked
env | grep -q -e ^SQUEUE_ -e ^SLURM_CLUSTERS= && exit 0
printf '{answer}'
"""
ENDED = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
    "COMPLETED\\nFAILED",
]
MAY_RUN = [
    "",
    "COMPLETING",
    "CONFIGURING",
    "PENDING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESIZING",
    "RESV_DEL_HOLD",
    "REVOKED",
    "RUNNING",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
    "UPDATE_DB",
    "OF_A_LATER_SLURM",
    "COMPLETED\\nRUNNING",
]


@pytest.mark.parametrize(
    ("state", "lives"), [*((one, False) for one in ENDED), *((one, True) for one in MAY_RUN)]
)
def test_the_state_of_a_job_tells_whether_it_lives(
    state: str, lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a known end is one. Asked once in ten seconds."""
    text = OF_A_STATE.format(folder=tmp_path, answer=state)
    put_squeue(tmp_path / "bin", text, monkeypatch)
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    put_claim(tmp_path / "run", "11", None)
    claim = Claim(tmp_path / "run")
    assert (claim.try_acquire() is not None) == lives
    if lives:
        claim.try_acquire()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--noheader --states=all --jobs 11 --format %T"]
    claim.release()


UNREACHABLE = """\
#!/bin/sh
echo "slurm_load_jobs error: Unable to contact slurm controller" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("job", "text", "lives"), [("11", UNKNOWN, False), ("11", UNREACHABLE, True), (None, "", True)]
)
def test_a_job_that_slurm_does_not_tell_of(
    job: str | None, text: str, lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten; no answer; and an owner that is no job."""
    put_squeue(tmp_path / "bin", text or "#!/bin/sh\necho COMPLETED\n", monkeypatch)
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    put_claim(tmp_path / "run", job, None)
    claim = Claim(tmp_path / "run")
    assert (claim.try_acquire() is not None) == lives
    claim.release()


@pytest.mark.parametrize(
    "name",
    [
        "SQUEUE_STATES",
        "SQUEUE_PARTITION",
        "SQUEUE_USERS",
        "SQUEUE_ACCOUNT",
        "SQUEUE_FORMAT2",
        "SLURM_CLUSTERS",
    ],
)
def test_what_a_user_has_set_for_his_squeue_hides_no_job(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a second process would train in the folder of a running one."""
    text = OF_A_STATE.format(folder=tmp_path, answer="RUNNING")
    put_squeue(tmp_path / "bin", text, monkeypatch)
    monkeypatch.setenv(name, "PENDING")
    assert not slurm.has_ended("11")
    assert slurm._squeue("11", "%T").stdout == "RUNNING"  # type: ignore[union-attr]
    listing = OF_A_STATE.format(folder=tmp_path, answer="11|RUNNING|main|None\\n")
    (tmp_path / "bin" / "squeue").write_text(listing)
    lost = slurm.lost_jobs(["11", "12"])
    # on a cluster of the user's choice, our jobs are not those of this one
    expected = {} if name == "SLURM_CLUSTERS" else {"12": "SLURM knows nothing of it any more"}
    assert lost == expected
