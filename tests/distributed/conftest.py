"""The worker's results on 1, 2 and 3 ranks: one launch each."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import TORCHRUN

Results = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """World size -> what each of its ranks has seen."""
    found: Results = {}
    for world_size in (1, 2, 3):
        folder = tmp_path_factory.mktemp(f"ranks{world_size}")
        worker = Path(__file__).with_name("worker.py")
        done = subprocess.run(
            [*TORCHRUN, "--nproc-per-node", str(world_size), worker, folder],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found[world_size] = [
            torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)
        ]
    return found
