import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlast.data import array_files
from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.data.store import check_prepared, open_data, prepare
from outlast.errors import DataError
from outlast.files import TEMPORARY_MARK
from outlast.sections import DataSection

RNG = np.random.default_rng(0)
SIGNAL = RNG.normal(5, 2, (100, 2, 6)).astype(np.float32)
AGE = RNG.integers(20, 80, 100)
LABEL = np.where(np.arange(100) % 4 == 0, "tumour", "normal")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write the data as an archive."""
    path = tmp_path / "data.npz"
    np.savez(path, signal=SIGNAL, age=AGE, label=LABEL)
    return path


@pytest.fixture
def npy_folder(tmp_path: Path) -> Path:
    """Write the data as a folder of arrays."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    for name, array in {"signal": SIGNAL, "age": AGE, "label": LABEL}.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def make(source: Path, folder: Path, **keys: Any) -> DataSet:
    """Prepare and open."""
    prepare(DataSection(source=str(source), **{"normalize": "standard"} | keys), folder)
    return open_data(folder)


@pytest.mark.parametrize("source", ["archive", "npy_folder"])
def test_round_trip(source: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """What was prepared is opened as it was: inputs in order, class numbers, splits, scaling."""
    data = make(request.getfixturevalue(source), tmp_path / "out", inputs=["signal", "age"])
    assert list(data.inputs) == ["signal", "age"]
    assert np.array_equal(data.inputs["signal"], SIGNAL)
    assert np.array_equal(data.inputs["age"], AGE)
    assert data.row_shapes == {"signal": (2, 6), "age": ()}
    assert data.classes == ["normal", "tumour"]
    assert data.label.dtype == np.int64
    assert np.array_equal(data.label, LABEL == "tumour")
    assert [len(rows) for rows in data.splits.values()] == [70, 15, 15]
    made = DataSet.from_arrays(
        {"signal": SIGNAL, "age": AGE}, data.label, data.splits, data.classes, "standard"
    )
    assert made.content == data.content
    for ours, theirs in zip(data.normalization.mean, made.normalization.mean, strict=True):
        assert torch.equal(ours, theirs)


def test_manifest(archive: Path, tmp_path: Path) -> None:
    """The manifest describes files, classes and counts; it is what `prepare` returns."""
    manifest = prepare(DataSection(source=str(archive)), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest
    file = tmp_path / "out" / "signal.npy"
    assert manifest["inputs"]["signal"] == {
        "file": "signal.npy",
        "shape": [100, 2, 6],
        "dtype": "float32",
        "bytes": file.stat().st_size,
        "changed": [file.stat().st_mtime_ns, file.stat().st_ctime_ns],
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    assert manifest["classes"] == ["normal", "tumour"]
    assert sum(manifest["counts"]["train"].values()) == 70
    assert manifest["counts"]["test"]["tumour"] in (3, 4)
    assert not (tmp_path / "out" / "normalization.npz").exists()


def test_maps_feed_torch_without_a_warning(archive: Path, tmp_path: Path) -> None:
    """Inputs and label are memory maps that nobody can write to; batches are copies of rows."""
    data = make(archive, tmp_path / "out", normalize="none")
    for array in (data.inputs["signal"], data.label, data.splits["train"]):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = BatchReader(data, torch.device("cpu")).read(data.splits["train"])
    batch.inputs[0].zero_()
    assert np.array_equal(data.inputs["signal"], SIGNAL)


def test_data_larger_than_the_memory_can_be_mapped(tmp_path: Path) -> None:
    """Two terabytes, sparse: a map that might be written to would be counted as memory."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**39,)}
    path = tmp_path / "large.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        size = file.tell() + 4 * 2**39
        try:
            file.truncate(size)
        except OSError:
            pytest.skip("no sparse files here")
    entry = {"file": path.name, "shape": [2**39], "dtype": "float32", "bytes": size}
    changed = [path.stat().st_mtime_ns, path.stat().st_ctime_ns]
    array = array_files.open_array(tmp_path, {**entry, "changed": changed, "sha256": ""})
    assert array[2**38] == 0


def test_content_is_the_same_wherever_it_lies(
    archive: Path, npy_folder: Path, tmp_path: Path
) -> None:
    """Story 18: archive, folder, copy, touched file, other layout: one content."""
    copy = tmp_path / "copy"
    shutil.copytree(npy_folder, copy)
    fortran = tmp_path / "fortran"
    shutil.copytree(npy_folder, fortran)
    np.save(fortran / "signal.npy", np.asfortranarray(SIGNAL))
    contents = [
        make(source, tmp_path / f"out{number}").content
        for number, source in enumerate((archive, npy_folder, copy, fortran))
    ]
    os.utime(npy_folder / "signal.npy", (1, 1))
    contents.append(make(npy_folder, tmp_path / "touched").content)
    assert len(set(contents)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"split": {"seed": 1}},
        {"normalize": "per_sample", "inputs": ["signal"]},
        {"normalize": "none"},
        {"inputs": ["signal", "age"]},
        {"inputs": ["age"]},
    ],
)
def test_content_depends_on_the_section(
    archive: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Other splits, another scaling, other inputs or another order are other content."""
    first = make(archive, tmp_path / "first").content
    assert make(archive, tmp_path / "second", **change).content != first


@pytest.mark.parametrize("name", ["signal", "age", "label"])
def test_content_depends_on_every_value(npy_folder: Path, tmp_path: Path, name: str) -> None:
    """One other value anywhere is other content."""
    first = make(npy_folder, tmp_path / "first", normalize="none").content
    array = np.load(npy_folder / f"{name}.npy")
    array.flat[-1] = "tumour" if name == "label" else 7
    np.save(npy_folder / f"{name}.npy", array)
    assert make(npy_folder, tmp_path / "second", normalize="none").content != first


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": {"z": AGE[:, None], "y": AGE[:, None]}},
        {"inputs": {"y": AGE[:, None], "x": AGE[:, None]}},
        {"inputs": {"x": AGE, "y": AGE[:, None]}},
        {"inputs": {"x": AGE[:, None].view(np.float64), "y": AGE[:, None]}},
        {"label": AGE > 40},
        {"splits": {"train": [0, 1], "test": [2]}},
        {"splits": {"train": [0, 1], "validation": [3]}},
        {"classes": ["a", "b"]},
        {"normalize": "per_sample"},
    ],
)
def test_content_depends_on_every_part(change: dict[str, Any]) -> None:
    """Name, order, shape, dtype, label, role of a row, class names and scaling are content."""
    wide = np.stack([AGE, AGE], axis=1)
    keys: dict[str, Any] = {
        "inputs": {"x": AGE[:, None], "y": AGE[:, None]},
        "label": AGE > 50,
        "splits": {"train": [0, 1], "validation": [2]},
    }
    if change.get("normalize") == "per_sample":
        keys["inputs"] = {"x": wide}
    first, second = DataSet.from_arrays(**keys), DataSet.from_arrays(**keys | change)
    assert first.classes == ["0", "1"]
    assert first.content != second.content


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (np.array([10, 9, 100] * 10), ["9", "10", "100"]),
        (np.array([2.0, -1.0] * 15), ["-1", "2"]),
        (np.array([True, False] * 15), ["False", "True"]),
        (np.array(["b", "a", "10"] * 10), ["10", "a", "b"]),
        (np.array([b"y", b"x"] * 15), ["x", "y"]),
    ],
)
def test_order_of_classes(tmp_path: Path, label: np.ndarray, classes: list[str]) -> None:
    """Classes are sorted, numbers by value and text by letter, and the label counts them."""
    np.savez(tmp_path / "data.npz", x=np.ones((30, 2)), label=label)
    data = make(tmp_path / "data.npz", tmp_path / "out")
    assert data.classes == classes
    names = np.array(data.classes)[data.label]
    given = np.char.decode(label) if label.dtype.kind == "S" else label
    assert [float(n) if label.dtype.kind == "f" else n for n in names] == [
        value if label.dtype.kind == "f" else str(value) for value in given.tolist()
    ]


def test_built_in(tmp_path: Path) -> None:
    """A built-in of scikit-learn keeps its own order of the classes."""
    data = make(Path("breast_cancer"), tmp_path / "out")
    assert data.classes == ["malignant", "benign"]
    assert np.bincount(data.label).tolist() == [212, 357]


def test_folder_is_never_copied(tmp_path: Path) -> None:
    """A folder of .npy files is used where it lies: nothing near its size is written."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    big = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float16, (40_000, 1000))
    big[::2] = 1
    np.save(folder / "label.npy", np.arange(40_000) % 2)
    data = make(folder, tmp_path / "out")
    written = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert written < 1_000_000 < data.inputs["x"].nbytes
    assert Path(data.inputs["x"].filename) == folder / "x.npy"


def test_paths_of_files_in_place(
    npy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the working directory a file is named relative to it, elsewhere absolutely."""
    monkeypatch.chdir(tmp_path)
    below = prepare(DataSection(source="arrays"), Path("out"))
    assert below["inputs"]["age"]["file"] == "arrays/age.npy"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    above = prepare(DataSection(source="../arrays"), Path("out"))
    assert above["inputs"]["age"]["file"] == str(npy_folder / "age.npy")
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(open_data(Path("elsewhere/out")).inputs["age"], AGE)


def test_link_into_the_project_is_kept(
    npy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linked folder is named by the link: where it leads may differ between machines."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data").symlink_to(npy_folder)
    monkeypatch.chdir(tmp_path / "project")
    manifest = prepare(DataSection(source="data"), Path("out"))
    assert manifest["inputs"]["age"]["file"] == "data/age.npy"


def test_prepare_again(archive: Path, npy_folder: Path, tmp_path: Path) -> None:
    """A folder from an earlier, even a broken, try is overwritten; open maps keep their data."""
    folder = tmp_path / "out"
    old = make(archive, folder)
    (folder / f"signal.npy{TEMPORARY_MARK}1").write_bytes(b"left by a killed try")
    (folder / "manifest.json").unlink()
    np.savez(archive, signal=SIGNAL + 1, age=AGE, label=LABEL)
    new = make(archive, folder, normalize="none")
    assert np.array_equal(old.inputs["signal"], SIGNAL)
    assert np.array_equal(new.inputs["signal"], SIGNAL + 1)
    assert not list(folder.glob(f"*{TEMPORARY_MARK}*"))
    assert new.normalization.kind == "none"


def test_failed_prepare_leaves_the_old(archive: Path, tmp_path: Path) -> None:
    """Nothing is written before the checks have passed."""
    content = make(archive, tmp_path / "out").content
    np.savez(archive, signal=SIGNAL * np.nan, age=AGE, label=LABEL)
    with pytest.raises(DataError):
        make(archive, tmp_path / "out")
    assert open_data(tmp_path / "out").content == content


def test_manifest_comes_last(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that dies while it writes leaves no manifest, so that nobody mixes old and new."""
    make(archive, tmp_path / "out")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        make(archive, tmp_path / "out")
    with pytest.raises(DataError, match=r"manifest\.json cannot be read.*run prepare"):
        open_data(tmp_path / "out")


def remove(file: Path) -> None:
    """Delete."""
    file.unlink()


def truncate(file: Path) -> None:
    """Cut the last value."""
    file.write_bytes(file.read_bytes()[:-8])


def append(file: Path) -> None:
    """Add a value."""
    file.write_bytes(file.read_bytes() + bytes(8))


def reshape(file: Path) -> None:
    """Keep the values, change the shape."""
    np.save(file, np.load(file).reshape(-1, 1))


def retype(file: Path) -> None:
    """Keep the bytes, change the dtype."""
    array = np.load(file)
    np.save(file, array.view(f"i{array.itemsize}" if array.dtype.kind == "f" else "f8"))


@pytest.mark.parametrize("name", ["arrays/signal.npy", "arrays/age.npy", "out/label.npy"])
@pytest.mark.parametrize("damage", [remove, truncate, append, reshape, retype])
def test_changed_file(
    npy_folder: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """A file that is gone, cut, longer, or of another shape or dtype is refused."""
    make(npy_folder, tmp_path / "out")
    damage(tmp_path / name)
    with pytest.raises(DataError, match=r"(signal|age|label)\.npy .*run prepare again"):
        open_data(tmp_path / "out")


def test_missing_normalization(archive: Path, tmp_path: Path) -> None:
    """Scaling that was fitted and is gone is refused, not left out."""
    make(archive, tmp_path / "out")
    (tmp_path / "out" / "normalization.npz").unlink()
    with pytest.raises(DataError, match=r"normalization\.npz cannot be read.*run prepare again"):
        open_data(tmp_path / "out")


@pytest.mark.parametrize("name", ["signal.npy", "label.npy", "split_train.npy"])
def test_prepared_values_changed_by_hand_are_refused_and_a_copy_is_not(
    archive: Path, tmp_path: Path, name: str
) -> None:
    """The digest of the manifest must not vouch for other bytes; a copied folder has the same."""
    content = make(archive, tmp_path / "out").content
    shutil.copytree(tmp_path / "out", tmp_path / "copy", copy_function=shutil.copyfile)
    assert open_data(tmp_path / "copy").content == content
    array = np.load(tmp_path / "copy" / name)
    array[0] += 1
    np.save(tmp_path / "copy" / name, array)
    with pytest.raises(DataError, match=r"\.npy has other values than when it was prepared"):
        open_data(tmp_path / "copy")


def test_a_change_that_hides_its_time_is_noticed(npy_folder: Path, tmp_path: Path) -> None:
    """`cp -p` and `rsync -t` set the time of the content back; that of the inode they cannot."""
    make(npy_folder, tmp_path / "out")
    stat = (npy_folder / "age.npy").stat()
    np.save(npy_folder / "age.npy", AGE[::-1])
    os.utime(npy_folder / "age.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(DataError, match="other values than when it was prepared"):
        open_data(tmp_path / "out")


def test_a_change_under_a_running_training_is_noticed(npy_folder: Path, tmp_path: Path) -> None:
    """The map shows the new values at once: no state may be saved of a run that has seen both."""
    data = make(npy_folder, tmp_path / "out")
    data.check_unchanged()
    replaced = npy_folder / "signal.npy"
    np.save(npy_folder / "new.npy", SIGNAL[::-1])
    (npy_folder / "new.npy").replace(replaced)
    (npy_folder / "age.npy").chmod(0o600)
    data.check_unchanged()  # the map still holds the file that was there; a mode is no value
    (npy_folder / "age.npy").touch()
    data.check_unchanged()  # other times, the same bytes
    (npy_folder / "age.npy").write_bytes((npy_folder / "age.npy").read_bytes()[::-1])
    with pytest.raises(DataError, match=r"age\.npy was changed while this run was reading it"):
        data.check_unchanged()
    (npy_folder / "age.npy").unlink()
    data.check_unchanged()


def test_files_that_nobody_has_touched_are_not_read_again(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt opens the data: a hundred gigabytes are not to be hashed each time."""
    make(archive, tmp_path / "out", normalize="none")
    monkeypatch.setattr(array_files, "digest_file", lambda path: pytest.fail(f"{path} was read"))
    open_data(tmp_path / "out")


def test_a_changed_normalization_is_refused(archive: Path, tmp_path: Path) -> None:
    """Other statistics would shift every row, in silence."""
    make(archive, tmp_path / "out")
    path = tmp_path / "out" / "normalization.npz"
    with np.load(path) as stored:
        arrays = {key: stored[key] * 2 for key in stored}
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=r"normalization\.npz cannot be read.*other values"):
        open_data(tmp_path / "out")


def test_manifest_of_another_version(archive: Path, tmp_path: Path) -> None:
    """A manifest of another format is not guessed at."""
    make(archive, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match=r"has format 99.*run prepare again"):
        open_data(tmp_path / "out")


@pytest.mark.parametrize("name", ["label", "split_test", "../x", "a/b", ".hidden"])
def test_names_that_cannot_be_files(tmp_path: Path, name: str) -> None:
    """An input that would overwrite another file, or leave the folder, is refused."""
    np.savez(tmp_path / "data.npz", **{name: AGE}, y=LABEL)
    section = DataSection(source=str(tmp_path / "data.npz"), label="y")
    with pytest.raises(DataError, match=r"data\.inputs: an array cannot be stored as"):
        prepare(section, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_source_is_not_the_target(npy_folder: Path) -> None:
    """Preparing into the source itself would overwrite its label."""
    with pytest.raises(DataError, match=r"data\.source:.*move the source elsewhere"):
        prepare(DataSection(source=str(npy_folder)), npy_folder)
    assert np.array_equal(np.load(npy_folder / "label.npy"), LABEL)


def test_values_changed_in_place_are_refused_and_a_touch_is_not(tmp_path: Path) -> None:
    """Arrays that are used where they lie are held against their content when they look newer."""
    folder = tmp_path / "npy"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    np.save(folder / "label.npy", np.arange(20) % 2)
    prepare(DataSection(source=str(folder)), tmp_path / "data")
    os.utime(folder / "x.npy", (1, 1))
    open_data(tmp_path / "data")
    np.save(folder / "x.npy", np.arange(40, dtype=np.float32).reshape(20, 2)[::-1])
    with pytest.raises(DataError, match="other values than when it was prepared"):
        open_data(tmp_path / "data")


def test_a_folder_of_another_split_or_normalization_is_refused(tmp_path: Path) -> None:
    """By hand, nobody else would notice: the model file would claim what was not done."""
    prepare(DataSection(source="iris"), tmp_path / "data")
    check_prepared(tmp_path / "data", DataSection(source="elsewhere.csv"))
    for other in ({"normalize": "standard"}, {"split": {"seed": 7}}):
        with pytest.raises(DataError, match=r"data\.(normalize|split): the config says"):
            check_prepared(tmp_path / "data", DataSection(source="iris", **other))
