"""A login node, a good profile, and what `outlast doctor` says there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_slurm import FakeSlurm
from snakemaking import ROOT

from outlast import cli

Found = list[tuple[str, str]]
GOOD = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())


def parse(output: str) -> Found:
    """Return word and text of each finding."""
    found: Found = []
    for line in output.split("\n\n")[0].splitlines():
        word, text = line[:6].strip(), line[6:].strip()
        if word:
            found.append((word, text))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text}")
    return found


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """The only programs on the PATH."""
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(fake.folder))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return fake


@pytest.fixture
def examine(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> Callable[..., Found]:
    """A function that calls the verb, and returns its findings."""

    def call(
        *options: str, profile: dict[str, Any] | None = None, config: dict[str, Any] | None = None
    ) -> Found:
        values = {key: value for key, value in {**GOOD, **(profile or {})}.items() if value != ""}
        Path("profile").mkdir(exist_ok=True)
        Path("profile/config.yaml").write_text(yaml.safe_dump(values))
        experiment = {"data": {"source": "iris"}, **(config or {})}
        Path("experiment.yaml").write_text(yaml.safe_dump(experiment))
        capsys.readouterr()
        code = cli.main(["doctor", "experiment.yaml", "--profile", "profile", *options])
        found = parse(capsys.readouterr().out)
        assert code == any(word == "BAD" for word, _ in found)
        assert not Path("results").exists()  # it was not there before
        return found

    return call
