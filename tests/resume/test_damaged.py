"""Truncated or altered state files: the generation before, or a fresh start, said in one line."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import Run, assert_same

Undisturbed = Callable[[int], Path]


def truncate(content: bytes) -> bytes:
    """Cut off the last third."""
    return content[: len(content) * 2 // 3]


def flip(at: float) -> Callable[[bytes], bytes]:
    """Return what flips one bit at that share of the file."""

    def mutate(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(at * (len(content) - 1))] ^= 1 << random.Random(at).randrange(8)
        return bytes(changed)

    return mutate


@pytest.fixture(scope="module")
def half_way(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Both state files of a run that was killed in its second epoch."""
    run = Run(tmp_path_factory.mktemp("half") / "run", data, every_seconds=0)
    assert run.kill_when(run.validates, 0.15)
    return {path.name: path.read_bytes() for path in run.folder.glob("model_resume*.pt")}


@pytest.mark.parametrize("mutate", [truncate, flip(0.0), flip(0.5), flip(1.0)])
def test_damaged_state_falls_back(
    mutate: Callable[[bytes], bytes],
    half_way: dict[str, bytes],
    data: Path,
    undisturbed: Undisturbed,
    tmp_path: Path,
) -> None:
    """One bad file: set aside by name, the previous generation is used, the result is exact."""
    run = Run(tmp_path / "run", data)
    run.folder.mkdir()
    for name, content in half_way.items():
        (run.folder / name).write_bytes(content)
    (run.folder / "model_resume.pt").write_bytes(mutate(half_way["model_resume.pt"]))
    run.finish()
    assert run.log.count("truncated or altered") == 1, run.log
    assert run.log.count("continuing from the previous generation") == 1
    assert len(list(run.folder.glob("model_resume.damaged-*.pt"))) == 1
    assert_same(run.folder, undisturbed(1))


def test_both_generations_damaged_starts_over(
    half_way: dict[str, bytes], data: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Two bad files: a fresh start that says so, and no loop of crashes."""
    run = Run(tmp_path / "run", data)
    run.folder.mkdir()
    for name, content in half_way.items():
        (run.folder / name).write_bytes(flip(0.3)(content))
    run.finish()
    assert "no good state is left, starting fresh" in run.log
    assert "resumed" not in run.log
    assert_same(run.folder, undisturbed(1))
