from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.data import arrays
from outlast.data.sources import BUILT_INS, read
from outlast.errors import DataError
from outlast.sections import DataSection

LABEL = np.array([0, 1, 0, 1])
TABLE = "gene_b,age,gene_a,site,label\n1,40,2,x,yes\n3,41,4,y,no\n5,42,6,x,yes\n"


def archive(folder: Path, **named: Any) -> str:
    """Write an archive."""
    np.savez(folder / "data.npz", **named)
    return str(folder / "data.npz")


def npy_folder(folder: Path, **named: Any) -> str:
    """Write a folder of arrays."""
    for name, array in named.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def table(folder: Path, text: str = TABLE, name: str = "data.csv") -> str:
    """Write a table."""
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("digits", (1797, 1, 8, 8), [str(i) for i in range(10)]),
        ("breast_cancer", (569, 30), ["malignant", "benign"]),
        ("iris", (150, 4), ["setosa", "versicolor", "virginica"]),
        ("wine", (178, 13), ["class_0", "class_1", "class_2"]),
    ],
)
def test_built_ins(name: str, shape: tuple[int, ...], classes: list[str]) -> None:
    """Built-ins come as one float32 input with the names of their classes."""
    source = read(DataSection(source=name))
    (array,) = source.inputs.values()
    assert list(source.inputs) == [BUILT_INS[name]]
    assert (array.shape, array.dtype, len(source.label)) == (shape, np.float32, shape[0])
    assert source.class_names == classes


def test_digits_are_scaled_to_one() -> None:
    """The grey levels 0..16 of digits become 0..1."""
    image = read(DataSection(source="digits")).inputs["image"]
    assert (image.min(), image.max()) == (0, 1)


def test_archive_order(tmp_path: Path) -> None:
    """A list gives the order of the inputs; without one it is alphabetical, without the label."""
    path = archive(tmp_path, b=np.ones((4, 2)), a=np.zeros((4, 3)), label=LABEL)
    assert list(read(DataSection(source=path)).inputs) == ["a", "b"]
    assert list(read(DataSection(source=path, inputs=["b", "a"])).inputs) == ["b", "a"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [(name, name) for name in sorted(arrays.DTYPES - {"float64"})]
    + [("float64", "float32"), ("uint16", "float32"), ("uint32", "float32"), (">f4", "float32")]
    + [("longdouble", "float32"), (">i4", "int32")],
)
def test_dtypes_in_memory(tmp_path: Path, given: str, stored: str) -> None:
    """Arrays of an archive keep a dtype that batches can use, and become float32 otherwise."""
    values = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    path = archive(tmp_path, x=values.astype(given), label=LABEL)
    array = read(DataSection(source=path)).inputs["x"]
    assert array.dtype == np.dtype(stored)
    assert array.dtype.isnative
    assert np.array_equal(array, values)


@pytest.mark.parametrize("dtype", sorted(arrays.DTYPES))
def test_folder_is_mapped(tmp_path: Path, dtype: str) -> None:
    """Arrays of a folder stay on disk, whatever the dtype, and say where."""
    path = npy_folder(tmp_path, x=np.ones((4, 2), dtype=dtype), label=LABEL)
    source = read(DataSection(source=path))
    assert isinstance(source.inputs["x"], np.memmap)
    assert source.inputs["x"].dtype == np.dtype(dtype)
    assert source.files == {"x": tmp_path / "x.npy"}


@pytest.mark.parametrize("dtype", ["uint16", ">f4", "longdouble"])
def test_folder_refuses_what_needs_a_copy(tmp_path: Path, dtype: str) -> None:
    """A .npy file that batches cannot use is refused with the command that converts it."""
    path = npy_folder(tmp_path, x=np.ones((4, 2), dtype=dtype), label=LABEL)
    with pytest.raises(DataError, match=r"data\.inputs: 'x' .*astype\(\"float32\"\)"):
        read(DataSection(source=path))


def test_table_default(tmp_path: Path) -> None:
    """Without `inputs`, a table gives its numeric columns, in its order, without the label."""
    source = read(DataSection(source=table(tmp_path)))
    assert source.inputs["features"].dtype == np.float32
    assert source.inputs["features"].tolist() == [[1, 40, 2], [3, 41, 4], [5, 42, 6]]
    assert source.label.tolist() == ["yes", "no", "yes"]


def test_table_patterns(tmp_path: Path) -> None:
    """Patterns choose columns: one array per entry of a mapping, one in all for a list."""
    path = table(tmp_path, TABLE.replace(",", "\t"), "data.TSV")
    inputs = read(DataSection(source=path, inputs={"old": "age", "genes": ["gene_a", "gene_*"]}))
    assert {name: array.tolist() for name, array in inputs.inputs.items()} == {
        "old": [[40], [41], [42]],
        "genes": [[1, 2], [3, 4], [5, 6]],
    }
    assert list(inputs.inputs) == ["old", "genes"]
    features = read(DataSection(source=path, inputs=["gene_a", "age"])).inputs["features"]
    assert features.tolist() == [[40, 2], [41, 4], [42, 6]]


def test_table_column_with_brackets(tmp_path: Path) -> None:
    """A column name that happens to be a pattern is matched as a name too."""
    path = table(tmp_path, "x[0],x0,label\n1,2,a\n3,4,b\n")
    features = read(DataSection(source=path, inputs=["x[0]"])).inputs["features"]
    assert features.tolist() == [[1, 2], [3, 4]]


def test_table_numbers_as_label(tmp_path: Path) -> None:
    """A label of numbers stays one."""
    label = read(DataSection(source=table(tmp_path, "x,label\n1,10\n2,9\n"))).label
    assert label.tolist() == [10, 9]


X = np.ones((4, 2), dtype=np.float32)
BROKEN = np.array([[0, 1], [np.nan, 1], [1, np.inf], [0, 0]], dtype=np.float32)


@pytest.mark.parametrize("write", [archive, npy_folder])
@pytest.mark.parametrize(
    ("named", "keys", "message"),
    [
        ({"x": X, "label": LABEL}, {"label": "labels"}, r"data\.label: 'labels'.*mean label\?"),
        ({"image": X, "label": LABEL}, {"inputs": ["imag"]}, r"data\.inputs: 'imag'.*mean image"),
        ({"x": X, "label": LABEL}, {"inputs": {"x": "x*"}}, r"data\.inputs:.*table.*\[x\]"),
        ({"x": X, "label": LABEL}, {"inputs": ["x", "label"]}, r"data\.inputs: 'label' is the l"),
        ({"x": X, "label": LABEL}, {"inputs": ["x", "x"]}, r"data\.inputs: 'x' comes up twice"),
        ({"x": X, "label": LABEL}, {"inputs": []}, r"data\.inputs: \[\] names no array"),
        ({"label": LABEL}, {}, r"data\.inputs: None names no array"),
        ({"x": X[:3], "label": LABEL}, {}, r"data\.inputs: 'x' has shape \(3, 2\).*4 rows"),
        ({"x": np.float32(1), "label": LABEL}, {}, r"data\.inputs: 'x' has shape \(\)"),
        ({"x": X[:, :0], "label": LABEL}, {}, r"data\.inputs: 'x' .*no values"),
        ({"x": X.astype(str), "label": LABEL}, {}, r"data\.inputs: 'x' has dtype <U.*encode"),
        ({"x": X.astype(complex), "label": LABEL}, {}, r"'x' has dtype complex.*two channels"),
        ({"x": X.astype(object), "label": LABEL}, {}, r"data\.source:.*not as objects"),
        ({"x": BROKEN, "label": LABEL}, {}, r"data\.inputs: 'x' holds 2 values.*row 1 "),
        ({"x": X * np.float64(1e39), "label": LABEL}, {}, r"'x' holds 8 values.*float32"),
        ({"x": X, "label": LABEL[:, None]}, {}, r"data\.label: 'label' has shape \(4, 1\)"),
        ({"x": X, "label": LABEL * 1j}, {}, r"data\.label: 'label' has .*complex"),
        ({"x": X, "label": LABEL + 0.5}, {}, r"data\.label: 'label' holds 0\.5 in row 0, no wh"),
        (
            {"x": X, "label": np.array([0, np.nan, 1, np.nan])},
            {},
            r"'label' is missing in 2 rows.*row 1 ",
        ),
        ({"x": X, "label": np.array([0, np.inf, 1, 2])}, {}, r"'label' holds inf in row 1"),
        ({"x": X, "label": np.array(["a", "", "b", "nan"])}, {}, r"is missing in 2 rows.*row 1 "),
        ({"x": X, "label": np.array([b"a", b"\xff", b"b", b"b"])}, {}, r"data\.label.*UTF-8"),
        ({"x": X, "label": LABEL * 0}, {}, r"data\.label: 'label' is 0 in every row"),
        ({"x": X[:0], "label": LABEL[:0]}, {}, r"data\.label: 'label' has no rows"),
    ],
)
def test_refused_arrays(
    tmp_path: Path,
    write: Callable[..., str],
    named: dict[str, Any],
    keys: dict[str, Any],
    message: str,
) -> None:
    """Arrays that cannot be trained on are refused, with key, value and what to do."""
    source = write(tmp_path, **named)
    with pytest.raises(DataError, match=message):
        read(DataSection(source=source, **keys))


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        (TABLE, {"label": "lable"}, r"data\.label: 'lable'.*mean label\?"),
        (TABLE, {"inputs": ["gen_*"]}, r"data\.inputs: 'gen_\*'.*mean gene_"),
        (
            TABLE,
            {"inputs": ["gene_*", "*"]},
            r"data\.inputs: '\*' matches 'label', the label.*narrower",
        ),
        (TABLE, {"inputs": {"x": ["label"]}}, r"data\.inputs: 'label' matches 'label', the label"),
        (TABLE, {"inputs": ["age", "site"]}, r"data\.inputs: column 'site' is not num.*'x'"),
        (TABLE, {"inputs": []}, r"data\.inputs: \[\] names no column"),
        (TABLE, {"inputs": {"x": []}}, r"data\.inputs:.*names no column"),
        ("a,label\nx,1\ny,2\n", {}, r"data\.inputs: null, and the table has no numeric column"),
        (",a,label\n0,1,1\n1,2,2\n", {}, r"data\.inputs: null.*no name \('Unnamed: 0'\)"),
        ("a,label\n1,1\n,2\n", {}, r"data\.inputs: column 'a' has 1 missing.*row 1 "),
        ("a,a,label\n1,2,x\n3,4,y\n", {}, r"data\.source: two columns are called 'a'"),
        ("a,b,label\n1,1,x\n2,n.d.,y\n3,3,y\n", {}, r"'b' holds numbers, and 1 .*'n.d.' in row 1 "),
        (
            "a,b,label\n1,1,x\n2,-,y\n3,3,y\n",
            {"inputs": ["b"]},
            r"'b' holds numbers.*'-' in row 1 ",
        ),
        ("a,label\n1,x\n1e300,y\n", {}, r"data\.inputs: 'features' holds 1 values.*float32"),
        ("a,label\n1,x\n2,\n3,NA\n", {}, r"data\.label: 'label' is missing in 2 rows.*row 1 "),
        ("a,label\n1,1\n2,\n", {}, r"data\.label: 'label' is missing in 1 rows.*row 1 "),
        ("a,label\n1,1\n2,1.5\n", {}, r"data\.label: 'label' holds 1\.5 in row 1"),
        ("a,label\n1,True\n2,True\n", {}, r"data\.label: 'label' is True in every row"),
        ("a,label\n", {"inputs": ["a"]}, r"data\.source: .* has a header and no rows"),
        ("", {}, r"data\.source: .*is no table"),
    ],
)
def test_refused_tables(tmp_path: Path, text: str, keys: dict[str, Any], message: str) -> None:
    """Tables that cannot be trained on, or that hold the answer, are refused with the fix."""
    source = table(tmp_path, text)
    with pytest.raises(DataError, match=message):
        read(DataSection(source=source, **keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "digts"}, r"data\.source: 'digts' does not exist.*mean digits\?"),
        ({"source": "data.cvs"}, r"data\.source: 'data\.cvs' does not exist.*mean data\.csv\?"),
        ({"source": "data.h5"}, r"data\.source: 'data\.h5' is of a kind.*\.npz"),
        (
            {"source": "broken.npz"},
            r"data\.source: 'broken\.npz' is no complete archive.*np\.savez",
        ),
        ({"source": "single.npz"}, r"data\.source: 'single\.npz' is no complete archive"),
        ({"source": "empty"}, r"data\.label: 'label' is not in the source; There: none"),
        ({"source": "iris", "label": "species"}, r"data\.label: 'species'.*There: label"),
        ({"source": "digits", "inputs": ["images"]}, r"data\.inputs: 'images'.*mean image\?"),
        ({"source": "iris", "inputs": {"features": "*"}}, r"data\.inputs:.*\[features\]"),
    ],
)
def test_refused_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], message: str
) -> None:
    """A source that is not there or not readable is refused, with the nearest name that is."""
    monkeypatch.chdir(tmp_path)
    table(tmp_path)
    (tmp_path / "data.h5").write_bytes(b"HDF")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(tmp_path / "single.npy", LABEL)
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        read(DataSection(**keys))


def test_finite_check_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad values are counted over all chunks, and the first row is the first of all."""
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 64)  # 16 rows
    values = np.zeros(100, dtype=np.float32)
    values[[37, 38, 99]] = np.nan
    path = npy_folder(tmp_path, x=values, label=np.arange(100))
    with pytest.raises(DataError, match=r"holds 3 values.*row 37 "):
        read(DataSection(source=path))


def test_labels_with_leading_zeros_are_text(tmp_path: Path) -> None:
    """01 and 1 are two classes; 1 and 2 without zeros are numbers, in numeric order."""
    path = tmp_path / "t.csv"
    path.write_text("a,label\n1,01\n2,1\n3,01\n")
    assert read(DataSection(source=str(path))).label.tolist() == ["01", "1", "01"]
    path.write_text("a,label\n1,10\n2,9\n3,10\n")
    assert read(DataSection(source=str(path))).label.tolist() == [10, 9, 10]
