from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from outlast.data.names import missing_names
from outlast.data.tables import column_names, read_frame
from outlast.sections import DataSection


@pytest.mark.parametrize(
    "header",
    [
        "a,b,label",
        '"a, with a comma","b ""quoted""",label',
        "\ufeffa,b,label",
        "\n\na,b,label",
        ",b,",
        "a, b ,label",
        '"two\nlines",b,label',
    ],
)
def test_columns_are_called_as_the_reader_calls_them(tmp_path: Path, header: str) -> None:
    """Quotes, a byte order mark, empty lines and names, spaces: as pandas has them."""
    path = tmp_path / "data.csv"
    path.write_text(f"{header}\n1,2,x\n", encoding="utf-8")
    frame = read_frame(path, DataSection(source=str(path)))
    assert isinstance(frame, pd.DataFrame)
    assert column_names(path) == list(frame.columns)


def test_arrays_and_built_ins(tmp_path: Path) -> None:
    """The names of an archive, of a folder's files and of a built-in; roles are looked up too."""
    arrays = {"x": np.zeros(3), "y": np.arange(3)}
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "folder").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    for source in (str(tmp_path / "data.npz"), str(tmp_path / "folder")):
        assert missing_names(DataSection(source=source, label="y", inputs=["x"])) == []
        lines = missing_names(DataSection(source=source, label="z", group="g", inputs=["x", "w"]))
        assert [line.partition(" is not")[0] for line in lines] == [
            "data.label: 'z'",
            "data.group: 'g'",
            "data.inputs: 'w'",
        ]
    (line,) = missing_names(DataSection(source="iris", target="petals"))
    assert line == "data.target: 'petals' is not in the source; There: features, label"


@pytest.mark.parametrize("name", ["absent.csv", "broken.npz", "latin.csv", "empty.csv", "x.txt"])
def test_what_cannot_be_told_from_a_header_is_left_to_the_reader(tmp_path: Path, name: str) -> None:
    """A source that another rule will make, or that is broken, lacks no name."""
    content = {"broken.npz": b"PK", "latin.csv": b"\xe9,label\n", "empty.csv": b"", "x.txt": b"a"}
    if name in content:
        (tmp_path / name).write_bytes(content[name])
    assert missing_names(DataSection(source=str(tmp_path / name), label="k")) == []
    assert missing_names(DataSection(source="diabetes", label="k")) == []


def test_patterns_for_arrays_are_left_to_the_reader(tmp_path: Path) -> None:
    """It says that only a table has columns, which helps more than a list of arrays."""
    np.savez(tmp_path / "data.npz", x=np.zeros(3), label=np.arange(3))
    section = DataSection(source=str(tmp_path / "data.npz"), inputs={"genes": "gene_*"})
    assert missing_names(section) == []
