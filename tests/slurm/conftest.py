"""The cluster of the tests, and an undisturbed run to compare with: once per process."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster as small_slurm
import pytest
from killing import Run, prepare_digits
from on_cluster import Workflow, experiment


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A SLURM that runs: the first user starts it, the last ends it. Skips where there is none."""
    try:
        with small_slurm.in_use():
            yield
    except small_slurm.NoClusterError as reason:
        pytest.skip(f"no SLURM here: {reason}")


@pytest.fixture
def workflow(cluster: None, tmp_path: Path) -> Iterator[Callable[..., Workflow]]:
    """Make a workflow of the kill tests' experiment; it is ended with the test."""
    made = []

    def make(
        *options: str,
        changes: dict[str, dict[str, Any]] | None = None,
        environment: dict[str, str] | None = None,
        **launch: Any,
    ) -> Workflow:
        config = experiment(**launch)
        for section, values in (changes or {}).items():
            config[section] = {**config.get(section, {}), **values}
        made.append(Workflow(tmp_path, config, options, environment or {}))
        return made[-1]

    yield make
    for work in made:
        work.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of a run of an experiment that nothing disturbs, outside of SLURM."""
    data = prepare_digits(tmp_path_factory.mktemp("digits"))
    finished: dict[tuple[str, int], Path] = {}

    def run(config: dict[str, Any], world_size: int = 1) -> Path:
        sections = {key: config[key] for key in ("data", "model", "training")}
        key = (json.dumps(sections, sort_keys=True), world_size)
        if key not in finished:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            Run(folder, data, sections, world_size, every_seconds=60, wait_s=0).finish()
            finished[key] = folder
        return finished[key]

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests have measured."""
    terminalreporter.section("measured on SLURM")
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
