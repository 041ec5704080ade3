"""Groups, confounds and targets: from the source into the data set, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.data.dataset import DataSet
from outlast.data.roles import read_roles
from outlast.data.store import open_data, prepare
from outlast.errors import DataError
from outlast.sections import DataSection

TABLE = """\
gene_a,gene_b,donor,site,age,label
1,2,d1,x,40,0
2,3,d1,,41,1
3,4,d2,y,,0
4,5,d2,y,43,1
5,6,d3,x,44,0
6,7,d3,x,45,1
7,8,d4,y,46,0
8,9,d4,,47,1
"""
KEYS = {"group": "donor", "confound": "site", "target": "age"}
HALVES = {"validation": 0.25, "test": 0.25}


def make(folder: Path, text: str = TABLE, **keys: Any) -> DataSet:
    """Prepare and open a table."""
    (folder / "rows.csv").write_text(text)
    section = {"source": str(folder / "rows.csv"), "split": HALVES, **KEYS, **keys}
    prepare(DataSection.model_validate(section), folder / "data")
    return open_data(folder / "data")


def test_columns_of_a_table(tmp_path: Path) -> None:
    """Categories are numbered in sorted order, unknown is -1, missing is NaN; none is an input."""
    data = make(tmp_path)
    assert data.inputs["features"].tolist() == [[i, i + 1] for i in range(1, 9)]
    roles = data.roles
    assert roles.values["group"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert roles.values["noise_group"].tolist() == roles.values["group"].tolist()
    assert roles.values["confound"].tolist() == [0, -1, 1, 1, 0, 0, 1, -1]
    assert roles.names["confound"] == ["x", "y"]
    assert roles.values["target"].dtype == np.float64
    assert np.isnan(roles.values["target"]).tolist() == [False, False, True] + [False] * 5
    assert roles.values["target"][3] == 43


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_arrays(tmp_path: Path, kind: str) -> None:
    """Archives and folders bring the same roles; numbers are categories too."""
    arrays = {
        "x": np.arange(16, dtype=np.float32).reshape(8, 2),
        "label": np.arange(8) % 2,
        "donor": np.repeat([10, 2, 7, 30], 2),
        "site": np.array([1.0, np.nan, 0, 0, 1, 1, 0, -1]),
        "age": np.array([40, 41, np.nan, 43, 44, 45, 46, 47]),
    }
    source = tmp_path / ("data.npz" if kind == "npz" else "arrays")
    if kind == "npz":
        np.savez(source, **arrays)
    else:
        source.mkdir()
        for name, array in arrays.items():
            np.save(source / f"{name}.npy", array)
    section = DataSection.model_validate({"source": str(source), "split": HALVES, **KEYS})
    prepare(section, tmp_path / "data")
    data = open_data(tmp_path / "data")
    assert list(data.inputs) == ["x"]
    assert data.roles.names["group"] == ["10", "2", "30", "7"]
    assert data.roles.names["confound"] == ["0", "1"]
    assert data.roles.values["confound"].tolist() == [1, -1, 0, 0, 1, 1, 0, -1]
    assert np.isnan(data.roles.values["target"][2])


def test_each_role_has_a_content_of_its_own(tmp_path: Path) -> None:
    """A changed confound is another confound, and the same data: a run without it stays as it is.

    A changed group may be another split, and that is other data.
    """
    tables = {
        "same": (TABLE, {}),
        "confound": (TABLE.replace("d1,x", "d1,y"), {}),
        "target": (TABLE.replace(",40,", ",39,"), {}),
        "names": (TABLE.replace(",x,", ",w,"), {}),  # of the same numbers
        "fewer": (TABLE, {"confound": None}),
        "group": (TABLE.replace("d1", "d4"), {"split": {**HALVES, "test": 0.5}}),
    }
    found = {}
    for name, (text, keys) in tables.items():
        (tmp_path / name).mkdir()
        found[name] = make(tmp_path / name, text, **keys)
    first = found["same"]
    assert {found[name].content for name in ("confound", "target", "names", "fewer")} == {
        first.content
    }
    assert found["group"].content != first.content
    changed = {
        name: {
            role
            for role, digest in first.role_content.items()
            if data.role_content.get(role) != digest
        }
        for name, data in found.items()
    }
    assert changed["same"] == set()
    assert changed["confound"] == changed["names"] == changed["fewer"] == {"confound"}
    assert changed["target"] == {"target"}


def test_categories_of_a_table_are_read_as_they_are_written(tmp_path: Path) -> None:
    """01 and 1 are two batches; blanks around a name are none of it; -1 and -1.0 are unknown."""
    rows = ["gene,batch,site,label"]
    rows += [
        f"{i},{batch},{site},{i % 2}"
        for i, (batch, site) in enumerate(
            [("01", "2"), ("1", "-1.0"), (" 1", "3"), ("01 ", "-1")] * 3
        )
    ]
    keys = {"group": None, "target": None, "noise_group": "batch", "confound": "site"}
    data = make(tmp_path, "\n".join(rows), **keys)
    assert data.roles.names == {"noise_group": ["01", "1"], "confound": ["2", "3"]}
    assert data.roles.values["noise_group"].tolist() == [0, 1, 1, 0] * 3
    assert data.roles.values["confound"].tolist() == [0, -1, 1, -1] * 3


def test_a_category_may_be_an_input_as_well(tmp_path: Path) -> None:
    """A batch number that the network shall see is a number there, and a name as the confound."""
    table = TABLE.replace(",x,", ",01,").replace(",y,", ",2,").replace(",,", ",3,")
    data = make(tmp_path, table, target=None, inputs=["gene_a", "site"])
    assert data.inputs["features"][:3].tolist() == [[1, 1], [2, 3], [3, 2]]
    assert data.roles.names["confound"] == ["01", "2", "3"]


def test_one_column_is_label_and_target(tmp_path: Path) -> None:
    """Above a threshold or not, and how far: the label of a study and its auxiliary target."""
    table = TABLE.replace(",,0", ",42,0")
    data = make(tmp_path, table, label="age", target="age", threshold=43.5, confound=None)
    assert data.label.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert data.roles.values["target"].tolist() == [40, 41, 42, 43, 44, 45, 46, 47]


@pytest.mark.parametrize(
    ("role", "values", "message"),
    [
        ("group", np.array(["a", "", "b"]), r"data\.group: missing in 1 rows, first row 1"),
        ("group", np.array([1.0, np.nan, 2]), r"data\.group: missing in 1 rows"),
        ("noise_group", np.array([np.nan, 0, 0]), r"data\.noise_group: missing in 1 rows, first"),
        ("confound", np.arange(3), r"data\.confound: 3 values in 3 rows are no categories; bin"),
        ("confound", np.array(["a", "a", ""]), r"data\.confound: 1 value\(s\) are known"),
        ("target", np.array(["a", "b", "c"]), r"data\.target: its values are <U1, first .*numbers"),
        ("target", np.full(3, np.nan), r"data\.target: every value is missing"),
        ("target", np.array([1.0, np.inf, 2]), r"data\.target: infinite in row 1"),
        ("target", np.zeros((3, 2)), r"data\.target: it has shape \(3, 2\)"),
        ("group", np.zeros(4), r"data\.group: it has shape \(4,\), and the label has 3 rows"),
    ],
)
def test_refused(role: str, values: np.ndarray, message: str) -> None:
    """What a role cannot hold is named with key, place and what to do."""
    with pytest.raises(DataError, match=message):
        read_roles({role: values}, 3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"group": "donr"}, r"data\.group: 'donr' is not in the source; did you mean donor\?"),
        ({"inputs": ["gene_*", "age"]}, r"data\.inputs: 'age' matches 'age', the target"),
        ({"inputs": ["*"], "label": "label"}, r"data\.inputs: '\*' matches 'age', the target"),
        ({"inputs": ["gene_a", "donor"]}, r"data\.inputs: 'donor' matches 'donor', the group"),
        ({"target": "site", "inputs": ["gene_a"]}, r"data\.target: its values are <U1"),
    ],
)
def test_refused_columns(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    """Unknown columns, and inputs that give the answer away."""
    with pytest.raises(DataError, match=message):
        make(tmp_path, **keys)


def test_minus_one_is_a_group_like_any_other() -> None:
    """Only of a confound it means unknown."""
    codes = np.array([-1, 0, -1, 1, 1, 0])
    assert read_roles({"group": codes}, 6).names["group"] == ["-1", "0", "1"]
    assert read_roles({"confound": codes}, 6).values["confound"].tolist() == [-1, 0, -1, 1, 1, 0]


def test_a_built_in_has_no_columns_beside(tmp_path: Path) -> None:
    """A role that could only be lost is refused; so is the label in another role."""
    with pytest.raises(DataError, match=r"data\.group: 'site' is no column of the built-in iris"):
        prepare(DataSection(source="iris", group="site"), tmp_path)
    with pytest.raises(DataError, match=r"data\.confound: 'label' is the label"):
        make(tmp_path, confound="label")


def test_large_targets_keep_their_digits(tmp_path: Path) -> None:
    """Seconds since 1970 differ by minutes: float32 would round them away."""
    text = TABLE.replace(",40,", ",1700000040,").replace(",41,", ",1700000041,")
    assert make(tmp_path, text).roles.values["target"][1] == 1700000041


def test_a_fixed_threshold_is_stratified(tmp_path: Path) -> None:
    """Its classes are known before the split: each split has both."""
    rows = "".join(f"{i},{i % 3},{100 if i < 12 else i % 7}\n" for i in range(120))
    for seed in range(5):
        data = make(
            tmp_path,
            "gene_a,gene_b,score\n" + rows,
            **{"label": "score", "threshold": 50, "group": None, "confound": None, "target": None},
            split={**HALVES, "seed": seed},
        )
        shares = [int(data.label[rows].sum()) for rows in data.splits.values()]
        assert shares == [6, 3, 3]


def test_a_confound_may_be_an_input(tmp_path: Path) -> None:
    """Its effect may be known to the network and still be unwanted in the representation."""
    text = TABLE.replace("x", "1").replace("y", "2").replace(",,", ",1,")
    data = make(tmp_path, text, inputs=["gene_a", "site"], target=None)
    assert data.inputs["features"].shape == (8, 2)
    assert data.roles.names["confound"] == ["1", "2"]


def test_two_classes_of_a_number_by_the_median_of_the_training_rows(tmp_path: Path) -> None:
    """The held-out rows do not shape the threshold; the classes are named after it."""
    text = TABLE.replace("d4,y,46", "d4,y,460").replace("d4,,47", "d4,,470")
    keys = {"label": "gene_b", "threshold": "median", "inputs": ["gene_a"], "target": "age"}
    split = {**HALVES, "stratify": False}
    data = make(tmp_path, text, **keys, split=split)
    values = np.arange(2, 10)
    median = np.median(values[data.splits["train"]])
    assert data.label.tolist() == (values > median).astype(int).tolist()
    assert data.classes == [f"at most {median:g}", f"above {median:g}"]
    assert len({*data.splits["train"], *data.splits["validation"], *data.splits["test"]}) == 8
    fixed = make(tmp_path, text, **{**keys, "threshold": 4.5}, split=split)
    assert fixed.classes == ["at most 4.5", "above 4.5"]


def test_a_threshold_beyond_the_values_is_refused(tmp_path: Path) -> None:
    """One class is none."""
    keys = {"label": "gene_b", "threshold": 100, "inputs": ["gene_a"]}
    with pytest.raises(DataError, match=r"data\.threshold: no two classes .* between 2 and 9"):
        make(tmp_path, **keys, split={"validation": 0, "test": 0.25, "stratify": False}, group=None)
    with pytest.raises(DataError, match=r"'donor' holds 'd1', and data\.threshold needs numbers"):
        make(tmp_path, label="donor", threshold=1, group=None)


def test_diabetes_is_a_table(tmp_path: Path) -> None:
    """Ten columns and progression, in their own units."""
    section = {
        "source": "diabetes",
        "inputs": ["age", "bmi", "bp", "s[1-6]"],
        "label": "progression",
        "threshold": "median",
        "confound": "sex",
        "target": "progression",
        "split": {"stratify": False},
    }
    manifest = prepare(DataSection.model_validate(section), tmp_path)
    data = open_data(tmp_path)
    assert data.inputs["features"].shape == (442, 9)
    assert data.roles.names["confound"] == ["1", "2"]
    assert np.bincount(data.roles.values["confound"]).tolist() == [235, 207]
    assert data.roles.values["target"].max() == 346
    low, high = manifest["counts"]["train"].values()
    assert abs(low - high) <= 6
