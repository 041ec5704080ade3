"""The claim of a SLURM job, as another attempt sees it with squeue."""

import json
import os
from pathlib import Path

import pytest

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


def put_claim(run: Path, job: str, cluster: str | None) -> None:
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
