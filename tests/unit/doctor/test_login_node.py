"""`outlast doctor` on the login node: each trap is found, named, and has a fix."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import PROGRAMS, FakeSlurm
from snakemaking import ROOT

from outlast import cli
from outlast.doctor import cluster, examination, programs, versions, visit
from outlast.doctor.profile import read_profile

Examine = Callable[..., list[tuple[str, str]]]
UNSET = ""  # a key that the profile lacks


def the_bad(found: list[tuple[str, str]]) -> str:
    """Return the only finding that is BAD."""
    bad = [text for word, text in found if word == "BAD"]
    assert len(bad) == 1, found
    return bad[0]


def test_a_good_cluster(examine: Examine) -> None:
    """The profile of the repository has no trap; two notes say what to know."""
    found = examine("--no-job")
    assert [text.partition(":")[0] for word, text in found if word != "ok"] == ["KillWait", "job"]
    assert ("ok", "partition main: up") in found
    assert ("ok", "resources.runtime on main: 60 min, and MaxTime is 1-00:00:00") in found
    assert ("ok", "nodes of main: 2 have what launch and resources ask for, 2 are up") in found
    assert any("30 s from SIGTERM to SIGKILL" in text for _, text in found)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "executor": ({"executor": "local"}, "executor: local; .* fix: `executor: slurm` in profile/"),
    "retries": ({"retries": 0}, "retries: 0; .* fix: `retries: 10`"),
    "no retries": ({"retries": UNSET}, r"retries: 0 \(not set\)"),
    "sacct": ({"slurm-status-command": "sacct"}, "slurm-status-command: sacct; .*squeue"),
    "status": ({"slurm-status-command": UNSET}, r"slurm-status-command: .*\(not set\)"),
    "requeue": ({"slurm-no-requeue": False}, "slurm-no-requeue: neither"),
    "both": ({"slurm-requeue": True}, "slurm-no-requeue: slurm-requeue is true as well"),
    "incomplete": ({"rerun-incomplete": False}, "rerun-incomplete: False; .*: true`"),
    "latency": ({"latency-wait": 0}, "latency-wait: 0; .* fix: `latency-wait: 60`"),
    "code": ({"rerun-triggers": ["mtime", "params", "input", "code"]}, "rerun-triggers: code is"),
    "input": ({"rerun-triggers": "mtime params"}, "rerun-triggers: without input: "),
    "triggers": ({"rerun-triggers": UNSET}, "rerun-triggers: not set"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_profile(examine: Examine, name: str) -> None:
    """Each is named with its value and its fix."""
    profile, said = SETTINGS[name]
    assert re.match(said, the_bad(examine("--no-job", profile=profile)))


def test_other_names_of_settings(examine: Examine) -> None:
    """Snakemake has several for some options."""
    profile = {"retries": UNSET, "restart-times": 3, "latency-wait": UNSET, "output-wait": 9}
    found = examine("--no-job", profile=profile)
    assert {("ok", "retries: 3"), ("ok", "latency-wait: 9")} <= set(found)


def test_old_or_missing_packages(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin before 2.7.1 and Snakemake before 9.27 are refused; the same is in pyproject."""
    installed = {"snakemake": "9.26.3", "snakemake-executor-plugin-slurm": "2.7.0"}
    monkeypatch.setattr(versions, "version", installed.__getitem__)
    found = [text for word, text in examine("--no-job") if word == "BAD"]
    assert [text.split()[:2] for text in found] == [
        ["snakemake:", "9.26.3"],
        ["snakemake-executor-plugin-slurm:", "2.7.0"],
    ]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for package, (oldest, _) in versions.NEEDED.items():
        assert f"{package}>={oldest}" in declared

    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(versions, "version", absent)
    found = [text for word, text in examine("--no-job") if word == "BAD"]
    assert [" is not installed" in text for text in found] == [True, True]


def test_no_slurm(examine: Examine, slurm: FakeSlurm) -> None:
    """One line."""
    slurm.remove("sinfo")
    found = examine()
    assert len(found) == 1
    assert "no login node" in the_bad(found)


@pytest.mark.parametrize("name", ["sinfo", "squeue", "scontrol", "sbatch"])
def test_a_program_that_does_not_answer(
    examine: Examine, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In its own words; absent or silent, in ours. Nothing more is asked then."""
    slurm.program(name, "echo 'Unable to contact slurm controller' >&2; exit 1")
    found = examine()
    assert the_bad(found).startswith(f"{name}: Unable to contact slurm controller fix: ")
    assert not any(text.startswith("partition") for _, text in found)
    if name != "sinfo":
        slurm.remove(name)
        assert f"there is no {name} on the PATH" in the_bad(examine())
    monkeypatch.setattr(programs, "TIMEOUT_S", 0.5)
    (slurm.folder / "sleep").symlink_to("/bin/sleep")
    slurm.program(name, "exec sleep 20")
    assert f"{name} is silent for 0.5 s" in the_bad(examine())


def test_a_user_s_own_looks_at_the_queue_change_nothing(
    examine: Examine, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats and filters that he has set for himself."""
    monkeypatch.setenv("SQUEUE_STATES", "FAILED")
    monkeypatch.setenv("SINFO_PARTITION", "none")
    for name in ("squeue", "sinfo"):
        fine = PROGRAMS.get(name, "")
        slurm.program(name, f'test -z "$SQUEUE_STATES$SINFO_PARTITION" || exit 1\n{fine}')
    assert not any(word == "BAD" for word, _ in examine("--no-job"))


# no sacct, and a profile that does not need it
LAB = {"default-resources": {"slurm_account": "lab"}}


def test_the_account(examine: Examine, slurm: FakeSlurm) -> None:
    """The plugin asks for it at each submission, and each one fails where it cannot."""
    assert ("ok", "slurm_account: lab") in examine("--no-job", profile=LAB)
    slurm.remove("sacctmgr")
    assert "slurm_account: there is no sacctmgr" in the_bad(examine("--no-job", profile=LAB))
    slurm.remove("sacct")
    said = the_bad(examine("--no-job"))
    assert said.startswith("slurm_account: there is no sacct on the PATH")
    assert said.endswith("or slurm_account: yours in profile/config.yaml")


def test_min_job_age(examine: Examine, slurm: FakeSlurm) -> None:
    """The plugin turns to sacct; or squeue forgets a job before Snakemake asks for it."""
    slurm.remove("sacct")
    slurm.settings(MinJobAge="120 sec")
    said = the_bad(examine("--no-job", profile=LAB))
    assert said.startswith("MinJobAge: 120 s; Snakemake looks at a long job once in 180 s")
    assert said.endswith("fix: ask the administrators for MinJobAge=300, SLURM's own default")
    slurm.settings(MinJobAge="0 sec")  # never forgotten
    assert ("ok", "MinJobAge: 0: squeue forgets no job") in examine("--no-job", profile=LAB)
    slurm.program("sacct", "exit 1")
    assert "asks sacct in spite of the profile" in the_bad(examine("--no-job"))


def test_sacct_in_place_of_squeue(examine: Examine, slurm: FakeSlurm) -> None:
    """What follows depends on the accounting; lower seconds help where squeue remembers enough."""
    late = {"slurm-init-seconds-before-status-checks": 101}
    assert cluster.RAREST_POLL_S == 180
    slurm.remove("sacct")
    assert not any(word == "BAD" for word, _ in examine("--no-job", profile={**late, **LAB}))
    slurm.program("sacct", "")
    said = the_bad(examine("--no-job", profile=late))
    assert "there is no accounting, so that it never learns of any end" in said
    assert "fix: slurm-init-seconds-before-status-checks: 100 in profile/config.yaml" in said
    accounting = "accounting_storage/slurmdbd"
    slurm.settings(AccountingStorageType=accounting)
    assert "after a scancel" in the_bad(examine("--no-job", profile=late))
    slurm.settings(AccountingStorageType=accounting, MinJobAge="30 sec")
    assert "until then slurm-status-command: sacct" in the_bad(examine("--no-job"))


REQUEUE = {"slurm-requeue": True, "slurm-no-requeue": UNSET}


def test_preemption(examine: Examine, slurm: FakeSlurm) -> None:
    """Each costs a retry, unless SLURM starts the job again; and there are other ways."""

    def noted(profile: dict[str, Any] | None = None) -> str:
        found = examine("--no-job", profile=profile)
        (text,) = [t for word, t in found if word == "note" and t.startswith("PreemptMode")]
        return text

    assert "OFF, and slurm-requeue: true" in noted(REQUEUE)
    slurm.partition(PreemptMode="REQUEUE")
    assert "fix: slurm-requeue: true instead of slurm-no-requeue: true in profile/config" in noted()
    requeued = examine("--no-job", profile=REQUEUE)
    assert ("ok", "PreemptMode of main: REQUEUE, and slurm-requeue: true") in requeued
    slurm.partition(PreemptMode="GANG,CANCEL")
    assert "costs one of its retries" in noted()
    slurm.partition(PreemptMode="GANG,SUSPEND")
    assert "stands still" in noted()
    slurm.partition()
    slurm.settings(PreemptType="preempt/qos")
    assert "the QOS decides" in noted()


PARTITIONS: dict[str, dict[str, Any]] = {
    "list": {"default-resources": ['slurm_partition="low"']},
    "word": {"default-resources": ["slurm_partition=low"]},
    "mapping": {"default-resources": {"slurm_partition": "low"}},
    "rule": {"set-resources": {"train": {"slurm_partition": "low"}}},
    "rule in a list": {"set-resources": ["train:slurm_partition=low"]},
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_which_partition(examine: Examine, slurm: FakeSlurm, name: str) -> None:
    """It is found in every form that Snakemake reads; the other rules' own is looked at as well."""
    said = the_bad(examine("--no-job", profile=PARTITIONS[name]))
    assert said == (
        "partition low: is not there (Partition low not found) fix: slurm_partition in"
        " profile/config.yaml; there are: main, low"
    )
    slurm.partition("low", State="DRAIN")
    found = examine("--no-job", profile=PARTITIONS[name])
    assert the_bad(found).startswith("partition low: is DRAIN, and its jobs wait until it is UP")
    assert (("ok", "partition main: up") in found) == name.startswith("rule")
    assert "--partition=low" in slurm.said("submitted")


def test_a_cluster_without_a_default_partition(examine: Examine, slurm: FakeSlurm) -> None:
    """The profile must name one."""
    slurm.program("sinfo", "echo 'main low'")
    assert the_bad(examine()).startswith("partition: none in the profile")


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "time": (
        {"resources": {"runtime": 1441}},
        "resources.runtime on main: 1441 min, and MaxTime is 1-00:00:00; .*: 1440 or less",
    ),
    "growing time": (
        {"resources": {"runtime": 600, "runtime_grows": True}},
        "resources.runtime on main: from attempt 3 on .*retries: 1 in profile",
    ),
    "memory": ({"resources": {"mem_mb": 64001}}, "resources.mem_mb on main: 64001 MB"),
    "growing memory": (
        {"resources": {"mem_mb": 6401, "mem_grows": True}},
        "resources.mem_mb on main: 6401 MB, 10 times as many in attempt 10 .* fix: at most 6400,",
    ),
    "threads": (
        {"launch": {"processes": 3, "threads": 3}},
        "launch.processes x threads on main: 3 x 3 = 9 CPUs, and a node gives 8",
    ),
    "GPUs": (
        {"launch": {"processes": 3, "device": "cuda"}, "resources": {"gpus": 3}},
        "resources.gpus on main: 3 on each node, and no node has more than 2",
    ),
    "nodes": ({"launch": {"nodes": 3}}, "nodes of main: 2 for one job have what"),
    "nodes that fit": (
        {"launch": {"nodes": 2, "processes": 5}},
        "nodes of main: 1 for one job have what",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_the_partition(examine: Examine, name: str) -> None:
    """What no node has, and what is above MaxTime, at the first attempt or at a later one."""
    config, said = LIMITS[name]
    assert re.match(said, the_bad(examine("--no-job", config=config)))


def test_what_just_fits(examine: Examine, slurm: FakeSlurm) -> None:
    """At the limit is not above it; no limit is none; fewer attempts grow less."""
    config = {
        "resources": {"runtime": 1440, "mem_mb": 64000, "gpus": 2},
        "launch": {"processes": 2, "threads": 4, "device": "cuda"},
    }
    model = {"set-resources": {"train": {"gpu_model": "a100"}}, "slurm-qos": "big"}
    assert not any(w == "BAD" for w, _ in examine("--no-job", config=config, profile=model))
    assert (
        "--test-only --partition=main --qos=big --gpus=a100:2 --nodes=1 --ntasks=1"
        " --cpus-per-task=8 --mem=64000 --time=1440"
    ) in slurm.said("submitted")
    growing = {"resources": {"runtime": 600, "runtime_grows": True}}
    found = examine("--no-job", config=growing, profile={"retries": 1})
    assert not any(word == "BAD" for word, _ in found)
    slurm.partition(MaxTime="UNLIMITED")
    assert not any(word == "BAD" for word, _ in examine("--no-job", config=growing))


def test_limits_that_the_partition_sets_itself(examine: Examine, slurm: FakeSlurm) -> None:
    """They are below what its nodes have."""
    config = {"launch": {"nodes": 2, "processes": 4}}
    assert not any(word == "BAD" for word, _ in examine("--no-job", config=config))
    for key, value, said in (
        ("MaxNodes", "1", "nodes of main: 1 for one job"),
        ("MaxCPUsPerNode", "3", "launch.processes x threads"),
        ("MaxMemPerNode", "3999", "resources.mem_mb on main"),
    ):
        slurm.partition(**{key: value})
        assert the_bad(examine("--no-job", config=config)).startswith(said)


def test_another_model_of_gpu(examine: Examine) -> None:
    """GPUs count only if they are of the profile's model."""
    config = {"launch": {"device": "cuda"}, "resources": {"gpus": 1}}
    profile = {"set-resources": {"train": {"gpu_model": "h100"}}}
    said = the_bad(examine("--no-job", config=config, profile=profile))
    assert "no node has more than 0 of gpu_model h100" in said


def test_a_type_of_gpu_that_the_plugin_refuses(examine: Examine, slurm: FakeSlurm) -> None:
    """A hyphen; the way around it is one that sbatch is asked with."""
    slurm.say("nodes", "node1|8|64000|idle|gpu:h100-80gb:2")
    config = {"launch": {"device": "cuda"}, "resources": {"gpus": 1}}
    train: dict[str, Any] = {"gpu_model": "h100-80gb"}
    said = the_bad(examine("--no-job", config=config, profile={"set-resources": {"train": train}}))
    fix = 'for train gpu: 0 and slurm_extra: "--gpus-per-node=h100-80gb:1" instead'
    assert said.startswith("gpu_model: h100-80gb; ")
    assert fix in said
    train = {"gpu": 0, "slurm_extra": "--gpus-per-node=h100-80gb:1"}
    found = examine("--no-job", config=config, profile={"set-resources": {"train": train}})
    assert not any(word == "BAD" for word, _ in found)
    assert "--partition=main --gpus-per-node=h100-80gb:1 --nodes=1" in slurm.said("submitted")


def test_a_gpu_that_nobody_asks_for(examine: Examine) -> None:
    """The device says cuda, and SLURM hears of no GPU; the profile may ask for one by itself."""
    config = {"launch": {"device": "cuda"}}
    said = the_bad(examine("--no-job", config=config))
    assert said.startswith("resources.gpus on main: 0, and launch.device is cuda: no attempt")
    assert "fix: resources.gpus: 1," in said
    gres = {"default-resources": {"gres": "gpu:a100:1"}}
    found = examine("--no-job", config=config, profile=gres)
    assert not any(word == "BAD" for word, _ in found)


def test_gpus_by_gres(examine: Examine, slurm: FakeSlurm) -> None:
    """On a cluster that knows no --gpus."""
    config = {"launch": {"device": "cuda", "processes": 2}, "resources": {"gpus": 2}}
    profile = {"set-resources": {"train": {"gpu": 0, "gres": "gpu:a100:2"}}}
    examine("--no-job", config=config, profile=profile)
    assert "--test-only --partition=main --gres=gpu:a100:2 --nodes=1" in slurm.said("submitted")


def test_nodes_that_are_down(examine: Examine, slurm: FakeSlurm) -> None:
    """They may come back: a note."""
    slurm.say("nodes", "node1|8|64000|down|(null)\nnode2|8|64000|idle*|(null)")
    found = examine("--no-job")
    (said,) = [text for word, text in found if text.startswith("nodes of main")]
    assert said.startswith("0 of 2 that fit are up now", len("nodes of main: "))
    slurm.say("nodes", "")
    assert the_bad(examine("--no-job")).startswith("nodes of main: there are none")


def test_what_slurm_itself_refuses(examine: Examine, slurm: FakeSlurm) -> None:
    """Limits that no program shows, in the words of sbatch."""
    slurm.say("verdict", "allocation failure: Job violates accounting/QOS policy")
    said = the_bad(examine("--no-job"))
    assert "--mem=4000 --time=60: allocation failure: Job violates accounting/QOS policy" in said


def test_results_that_cannot_be_written(
    examine: Examine, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job is sent then. Little room is noted."""
    monkeypatch.setattr(visit, "SCARCE_BYTES", 1e18)
    assert any(word == "note" and "GB free" in text for word, text in examine("--no-job"))
    monkeypatch.setattr(examination, "RESULTS", Path("experiment.yaml"))
    said = the_bad(examine())
    assert said.startswith("experiment.yaml/: cannot be written to: File exists fix: make room")
    assert "--wrap=exec" not in slurm.said("submitted")


def test_no_profile(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    """A message with the name that was looked for."""
    config = '{"data": {"source": "iris"}}'
    assert cli.main(["doctor", config, "--profile", "none"]) == 1
    assert "--profile: none is no folder with a config.yaml" in capsys.readouterr().err


def test_which_file_of_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Snakemake: the newest that is not above its version; a file; its settings folder."""
    folder = tmp_path / "snakemake/slurm"
    folder.mkdir(parents=True)
    for name in ("config.yaml", "config.v8+.yaml", "config.v9+.yaml", "config.v99+.yaml", "x.yaml"):
        (folder / name).write_text(f"name: {name}")
    assert read_profile(str(folder)).get("name") == "config.v9+.yaml"
    assert read_profile(str(folder / "x.yaml")).get("name") == "x.yaml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_profile("slurm").get("name") == "config.v9+.yaml"


def test_torch_is_not_imported() -> None:
    """A login node answers at once."""
    code = "import sys, outlast.doctor.examination; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert output.stdout == "False\n"
