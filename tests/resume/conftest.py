"""Data, and undisturbed runs to compare with: once per session."""

from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Run, prepare_digits


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, prepared."""
    return prepare_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Folder of a finished run that nothing disturbed, by number of ranks."""
    finished: dict[int, Path] = {}

    def get(world_size: int) -> Path:
        if world_size not in finished:
            folder = tmp_path_factory.mktemp(f"undisturbed-{world_size}") / "run"
            Run(folder, data, world_size=world_size).finish()
            finished[world_size] = folder
        return finished[world_size]

    return get
