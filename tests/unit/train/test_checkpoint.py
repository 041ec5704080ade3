import io
import os
import pickle
import random
import resource
import shutil
import signal
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlast.errors import ModelError
from outlast.files import seal
from outlast.recipe import fingerprint
from outlast.train.checkpoint import MODEL_RESUME, MODEL_RESUME_PREVIOUS, Checkpoints
from outlast.train.state import FORMAT, SavedState

RECIPE = {"training.learning_rate": 0.1, "data.content": "abc"}
OTHER = RECIPE | {"training.learning_rate": 0.2}


def state(epoch: int = 1, **changes: Any) -> SavedState:
    """A state with something of each kind in it."""
    made = SavedState(
        format=FORMAT,
        recipe=RECIPE,
        epoch=epoch,
        step=3,
        train_seconds=1.5,
        weights={"w": torch.full((5, 3), float(epoch)), "n": torch.tensor(7)},
        buffers={"b": torch.arange(3)},
        best_weights={"w": torch.zeros(5, 3, dtype=torch.float64)},
        optimizer={"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]},
        clipping={"norms": torch.zeros(3), "count": torch.tensor(2)},
        scaler={"scale": 2.0},
        schedule={"best": None, "bad_epochs": 0, "reductions": 2},
        selection={"best_epoch": 1, "best_value": 0.25, "epochs_since_best": 0},
        sums=[{"loss": 0.1, "rows": 2.0}, {"loss": 0.2, "rows": 3.0}],
        history=[{"epoch": 1, "val_auc": None, "train_loss": 0.1}],
    )
    return replace(made, **changes)


def names(folder: Path) -> list[str]:
    """The files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def aside(recipe: dict[str, Any], epoch: int) -> str:
    """The name under which a state is kept for later."""
    return f"model_resume.{fingerprint(recipe)[:12]}.epoch-{epoch}.step-3.pt"


def test_save_keeps_the_previous_generation(tmp_path: Path) -> None:
    """Two whole files: the state, and the one before it."""
    checkpoints = Checkpoints(tmp_path)
    for epoch in (1, 2, 3):
        size = checkpoints.save(state(epoch))
    assert names(tmp_path) == sorted([MODEL_RESUME, MODEL_RESUME_PREVIOUS])
    assert checkpoints.current.stat().st_size == size
    generations = (checkpoints.previous, checkpoints.current)
    assert [torch.load(path, weights_only=True)["epoch"] for path in generations] == [2, 3]


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every field round-trips through a file of tensors and plain values (story 13)."""
    Checkpoints(tmp_path).save(state())
    loaded, notes = Checkpoints(tmp_path).load(RECIPE)
    assert notes == []
    assert loaded is not None
    for name, value in state().as_dict().items():
        found = getattr(loaded, name)
        if name in ("weights", "buffers", "best_weights", "clipping"):
            assert {k: (v.dtype, v.tolist()) for k, v in found.items()} == {
                k: (v.dtype, v.tolist()) for k, v in value.items()
            }
        else:
            assert found == value, name
    assert torch.load(tmp_path / MODEL_RESUME, weights_only=True)["history"] == state().history


def test_a_state_file_is_a_torch_file(tmp_path: Path) -> None:
    """Sealed, byte for byte; and it can be mapped into memory."""
    size = Checkpoints(tmp_path).save(state())
    path, whole = tmp_path / MODEL_RESUME, io.BytesIO()
    torch.save(state().as_dict(), whole)
    assert path.read_bytes() == seal(whole.getvalue())
    assert size == path.stat().st_size
    mapped = torch.load(path, weights_only=True, mmap=True)
    assert torch.equal(mapped["weights"]["w"], torch.ones(5, 3))


def test_a_disk_that_fills_up_leaves_the_generations_before(tmp_path: Path) -> None:
    """In the middle of a state of 8 MB, by a limit on the size of files: nothing else is left."""
    checkpoints = Checkpoints(tmp_path)
    for epoch in (1, 2):
        checkpoints.save(state(epoch))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
        with pytest.raises(OSError, match="File too large"):
            checkpoints.save(state(3, weights={"w": torch.zeros(2_000_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_empty_folder_is_a_fresh_start(tmp_path: Path) -> None:
    """No state, nothing to say."""
    assert Checkpoints(tmp_path).load(RECIPE) == (None, [])


def test_a_recipe_is_compared_by_its_fingerprint(tmp_path: Path) -> None:
    """An option that was 1 and is true now begins anew; NaN is the value that it was."""
    before = RECIPE | {"model.options.missing": float("nan"), "model.options.v": 1}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1, recipe=before))
    assert checkpoints.load(before | {"model.options.missing": float("nan")})[0] is not None
    found, notes = checkpoints.load(before | {"model.options.v": True})
    assert found is None
    assert notes[0].startswith("changed: model.options.v (1 -> True); old state kept as")


def test_another_recipe_sets_the_state_aside(tmp_path: Path) -> None:
    """A changed config starts fresh, names the change, and deletes nothing (story 17)."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    loaded, notes = checkpoints.load(OTHER)
    assert loaded is None
    kept = aside(RECIPE, 2)
    assert notes == [
        f"changed: training.learning_rate (0.1 -> 0.2); old state kept as {kept}, starting fresh"
    ]
    assert names(tmp_path) == [kept]


def test_a_config_changed_back_recalls_its_state(tmp_path: Path) -> None:
    """There and back again: each recipe goes on with its own state."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(4))
    assert checkpoints.load(OTHER)[0] is None
    checkpoints.save(state(9, recipe=OTHER))
    back, notes = checkpoints.load(RECIPE)
    assert back is not None
    assert back.epoch == 4
    assert "made with this very recipe: taking it back" in notes[-1]
    assert names(tmp_path) == sorted([MODEL_RESUME, aside(OTHER, 9)])
    again, _ = checkpoints.load(RECIPE)
    assert again is not None
    assert again.epoch == 4
    forth, _ = checkpoints.load(OTHER)
    assert forth is not None
    assert forth.epoch == 9


def test_the_furthest_state_that_may_go_on_is_taken(tmp_path: Path) -> None:
    """Epochs 8, 6, 4, and 8 again: each length is kept, and none is trained twice."""
    checkpoints = Checkpoints(tmp_path)

    def load(epochs: int) -> tuple[SavedState | None, list[str]]:
        return checkpoints.load(RECIPE, lambda kept: "too far" if kept.epoch > epochs else None)

    checkpoints.save(state(8))
    assert load(6) == (None, [f"too far; old state kept as {aside(RECIPE, 8)}, starting fresh"])
    checkpoints.save(state(6))
    assert load(4)[0] is None
    checkpoints.save(state(3))
    checkpoints.save(state(4))
    for epochs, found in ((8, 8), (7, 6), (5, 4), (6, 6), (9, 8)):
        loaded, notes = load(epochs)
        assert loaded is not None
        assert loaded.epoch == found
        assert notes[-1].startswith(f"{aside(RECIPE, found)} was made with this very recipe")
        assert torch.load(checkpoints.current, weights_only=True)["epoch"] == found
    assert load(9)[1] == [], "nothing that is further"
    assert names(tmp_path) == sorted([MODEL_RESUME, aside(RECIPE, 4), aside(RECIPE, 6)])
    Checkpoints(tmp_path / "elsewhere").save(state(9, recipe=OTHER))
    (tmp_path / "elsewhere" / MODEL_RESUME).replace(tmp_path / aside(RECIPE, 9))
    assert load(9)[1] == [], "the name alone is not enough"


def test_an_old_generation_of_another_recipe_is_no_way_back(tmp_path: Path) -> None:
    """After a change of the config, a damaged new state does not lead to one of the old recipe."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2, recipe=OTHER))
    checkpoints.current.write_bytes(b"")
    loaded, _ = checkpoints.load(OTHER)
    assert loaded is None


def mutations(content: bytes) -> dict[str, bytes]:
    """More than 300 ways in which a file can be wrong."""
    size, changed = len(content), {}
    for index in range(120):
        length = index * size // 120
        changed[f"cut to {length}"] = content[:length]
    for length in (size - 1, size - 2, size - 22, size - 79, size - 80):
        changed[f"cut to {length}"] = content[:length]
    places = [*range(16), *range(size - 110, size), *(i * size // 120 for i in range(120))]
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        changed[f"bit of byte {place}"] = bytes(flipped)
    for start in range(0, size, size // 20):
        zeroed = content[:start] + bytes(min(64, size - start)) + content[start + 64 :]
        if zeroed != content:
            changed[f"hole at {start}"] = zeroed
    changed |= {"longer": content + b"\0", "twice": content * 2, "text": b"hello"}
    return changed


def test_no_damaged_file_is_ever_loaded(tmp_path: Path) -> None:
    """Over 300 cuts, flips and holes: the previous generation is used, and the log says so."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1))
    checkpoints.save(state(2))
    old, new = checkpoints.previous.read_bytes(), checkpoints.current.read_bytes()
    damaged = mutations(new)
    assert len(damaged) >= 300
    for name, content in damaged.items():
        checkpoints.previous.write_bytes(old)
        checkpoints.current.write_bytes(content)
        loaded, notes = checkpoints.load(RECIPE)
        assert loaded is not None, name
        assert loaded.epoch == 1, name
        assert notes[0].startswith("model_resume.pt is truncated or altered: set aside as"), name
        assert notes[1] == "continuing from the previous generation, model_resume.prev.pt"
        (aside,) = tmp_path.glob("model_resume.damaged-*.pt")
        assert aside.read_bytes() == content, name
        aside.unlink()


def mutate(content: bytes, dice: random.Random, foreign: list[bytes]) -> bytes:
    """Damage a file in one of many ways, or put something else in its place."""
    changed, place = bytearray(content), dice.randrange(len(content))
    kind = dice.choice(["cut", "flip", "flip", "insert", "remove", "fill", "foreign"])
    if kind == "cut":
        return content[:place]
    if kind == "flip":
        for _ in range(dice.randrange(1, 9)):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    elif kind == "insert":
        changed[place:place] = dice.randbytes(dice.randrange(1, 300))
    elif kind == "remove":
        del changed[place : place + dice.randrange(1, 300)]
    elif kind == "fill":
        end = min(len(changed), place + dice.randrange(1, 300))
        changed[place:end] = dice.randbytes(end - place)
    else:
        return dice.choice(foreign)
    return bytes(changed)


# ten thousand in all
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thousand_mutated_pairs_of_generations(tmp_path: Path, seed: int) -> None:
    """None is trained from, none is run, none loops: a good generation of this run, or nothing."""
    dice, folder, mark = random.Random(seed), tmp_path / "run", tmp_path / "mark"
    folder.mkdir()
    checkpoints = Checkpoints(folder)
    for epoch in (1, 2):
        checkpoints.save(state(epoch))
    old, new = checkpoints.previous.read_bytes(), checkpoints.current.read_bytes()
    elsewhere = Checkpoints(tmp_path / "other")
    elsewhere.save(state(5, recipe=OTHER))
    hostile = seal(archive_of(pickle.dumps(Hostile(mark), protocol=2)))
    foreign = [b"", b"\0" * 5000, hostile, elsewhere.current.read_bytes(), old, new]
    for _ in range(1000):
        shutil.rmtree(folder)
        folder.mkdir()
        checkpoints.current.write_bytes(mutate(new, dice, foreign))
        whole = dice.random() < 0.5
        checkpoints.previous.write_bytes(old if whole else mutate(old, dice, foreign))
        good = {
            epoch
            for epoch, content in ((1, old), (2, new))
            if content in (checkpoints.current.read_bytes(), checkpoints.previous.read_bytes())
        }
        loaded, _ = checkpoints.load(RECIPE)
        assert not mark.exists()
        if loaded is None:
            # a state of another recipe in its place: that run was changed, and this begins
            assert not good or any("epoch-5" in path.name for path in folder.iterdir())
            continue
        assert loaded.epoch in good
        assert loaded.recipe == RECIPE
        assert torch.equal(loaded.weights["w"], state(loaded.epoch).weights["w"])
        again, _ = checkpoints.load(RECIPE)
        assert again is not None
        assert again.epoch == loaded.epoch


def test_two_damaged_generations_start_over(tmp_path: Path) -> None:
    """With nothing good left a run starts over, says so, and keeps both files to look at."""
    checkpoints = Checkpoints(tmp_path)
    for epoch in (1, 2):
        checkpoints.save(state(epoch))
    checkpoints.current.write_bytes(b"one")
    checkpoints.previous.write_bytes(b"two")
    loaded, notes = checkpoints.load(RECIPE)
    assert loaded is None
    assert notes[-1] == "no good state is left, starting fresh"
    assert len(list(tmp_path.glob("model_resume.damaged-*.pt"))) == 2


def test_another_format_is_set_aside_with_both_numbers(tmp_path: Path) -> None:
    """A state of another version of outlast is not read as one of this."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(format=99))
    loaded, notes = checkpoints.load(RECIPE)
    assert loaded is None
    assert f"model_resume.pt is of format 99, this version reads {FORMAT}" in notes[0]


class Hostile:
    """Runs a command when it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def archive_of(pickled: bytes) -> bytes:
    """Put a pickle where torch.load looks for it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", "3\n")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["plain pickle", "archive", "sealed archive"])
def test_code_in_a_state_file_never_runs(tmp_path: Path, kind: str) -> None:
    """os.system in a pickle is not called, whether or not the digest of the file is right."""
    mark = tmp_path / "ran"
    pickled = pickle.dumps(Hostile(mark), protocol=2)
    content = pickled if kind == "plain pickle" else archive_of(pickled)
    content = seal(content) if kind == "sealed archive" else content
    (tmp_path / MODEL_RESUME).write_bytes(content)
    loaded, notes = Checkpoints(tmp_path).load(RECIPE)
    assert loaded is None
    assert not mark.exists()
    assert notes[0].startswith("model_resume.pt is ")
    pickle.loads(pickled)
    assert mark.exists(), "the pickle was hostile indeed"


def test_a_sealed_file_of_something_else_is_no_state(tmp_path: Path) -> None:
    """Intact torch files that hold a list, or surplus keys, are set aside."""
    for content in ([1, 2], state().as_dict() | {"surplus": 1}):
        buffer = io.BytesIO()
        torch.save(content, buffer)
        (tmp_path / MODEL_RESUME).write_bytes(seal(buffer.getvalue()))
        loaded, notes = Checkpoints(tmp_path).load(RECIPE)
        assert loaded is None
        assert "model_resume.pt is no state of outlast" in notes[0]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_no_file_in_place_of_the_state_falls_back(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A folder, a pipe, a link to itself: set aside, and the generation before is used."""
    checkpoints = Checkpoints(tmp_path)
    for epoch in (1, 2):
        checkpoints.save(state(epoch))
    checkpoints.current.unlink()
    make(checkpoints.current)
    (tmp_path / "model_resume.pt.outlast-tmp-1").mkdir()
    loaded, notes = Checkpoints(tmp_path).load(RECIPE)
    assert loaded is not None
    assert loaded.epoch == 1
    assert "model_resume.pt is unreadable (" in notes[0]


def test_a_foreign_state_beside_our_own_generation(tmp_path: Path) -> None:
    """The foreign file is kept under its fingerprint, and the generation before is used."""
    checkpoints = Checkpoints(tmp_path)
    for epoch in (1, 2):
        checkpoints.save(state(epoch))
    foreign = Checkpoints(tmp_path / "elsewhere")
    foreign.save(state(9, recipe=OTHER))
    foreign.current.replace(checkpoints.current)
    loaded, notes = Checkpoints(tmp_path).load(RECIPE)
    assert loaded is not None
    assert loaded.epoch == 1
    assert "of another recipe" in notes[0]
    assert aside(OTHER, 9) in names(tmp_path)


def test_a_state_that_could_not_be_read_back_is_refused_at_the_first_save(tmp_path: Path) -> None:
    """Saved happily, it would be set aside at each attempt, and the run would never end."""
    bad = state(weights={"_extra_state": {"t": np.float64(1.0) * np.ones(2)}})
    with pytest.raises(ModelError, match=r"model\.network: .*get_extra_state"):
        Checkpoints(tmp_path).save(bad)
    assert names(tmp_path) == []


def test_a_state_that_cannot_be_read_back_replaces_none(tmp_path: Path) -> None:
    """An attempt whose network has been changed to the worse leaves what is there."""
    Checkpoints(tmp_path).save(state(1))
    before = (tmp_path / MODEL_RESUME).read_bytes()
    with pytest.raises(ModelError, match="get_extra_state"):
        Checkpoints(tmp_path).save(state(2, buffers={"b": np.float64(1.0)}))
    assert names(tmp_path) == [MODEL_RESUME]
    assert (tmp_path / MODEL_RESUME).read_bytes() == before


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(3).to_sparse(),
        torch.arange(6)[::2],
        torch.arange(6).expand(4, 6),
        torch.zeros(0, 3, dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
    ids=["sparse", "every second", "expanded", "empty", "parameter", "conjugated"],
)
def test_any_tensor_can_be_in_a_state(tmp_path: Path, value: torch.Tensor) -> None:
    """The first save, which looks at what it will write, takes it; and it comes back."""
    Checkpoints(tmp_path).save(state(buffers={"b": value}))
    loaded, _ = Checkpoints(tmp_path).load(RECIPE)
    assert loaded is not None
    found = loaded.buffers["b"]
    assert (found.dtype, found.layout) == (value.dtype, value.layout)
    assert torch.equal(found.to_dense(), value.to_dense())
