"""A data set as training sees it: arrays, label, splits, roles, and a digest of all of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outlast.data.array_files import FileState, digest_file, file_state
from outlast.data.arrays import row_chunks
from outlast.data.labels import Labels
from outlast.data.normalize import Normalization
from outlast.data.roles import Roles
from outlast.data.splits import SPLITS
from outlast.errors import DataError


@dataclass(frozen=True, eq=False)
class DataSet:
    """Arrays, label and splits of one experiment.

    Attributes:
        inputs: Name -> array (N, ...), in the order of the network's ``forward``.
        label: (N,) int64, number of the class.
        classes: Name of each class, by number.
        splits: `train`, `validation`, `test` -> (n,) int64 row numbers, sorted.
        normalization: Fitted on the training rows, on the CPU.
        content: SHA-256 of all of the above: the same data give the same, wherever they lie.
        roles: Group, confound and target of each row, as far as the config names them.
        role_content: SHA-256 of each role: naming one that nothing uses changes no number.
        opened: Each file that is mapped, what it was like then, and the SHA-256 of its bytes.
    """

    inputs: dict[str, np.ndarray]
    label: np.ndarray
    classes: list[str]
    splits: dict[str, np.ndarray]
    normalization: Normalization
    content: str
    roles: Roles = field(default_factory=Roles)
    role_content: dict[str, str] = field(default_factory=dict)
    opened: dict[Path, tuple[FileState, str]] = field(default_factory=dict)

    def check_unchanged(self) -> None:
        """Refuse to go on when a file was written to since it was opened: the map shows it.

        A file that was replaced or removed is no harm: the map keeps the old one. Nor is one that
        was touched: it is read again, once.

        Raises:
            DataError: With the file.
        """
        for path, (before, sha256) in self.opened.items():
            try:
                now = file_state(path)
            except OSError:
                continue
            if now == before or now[:2] != before[:2]:
                continue
            if digest_file(path) != sha256:
                raise DataError(
                    f"{path} was changed while this run was reading it; put the old values back,"
                    " or run prepare again, and start the run again: it goes on from the last"
                    " state, or afresh on new data"
                )
            self.opened[path] = now, sha256

    @property
    def labels(self) -> Labels:
        """Everything about the rows but their inputs."""
        return Labels(self.label, self.classes, self.splits, self.roles)

    @property
    def row_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each input; () where a row is one value."""
        return {name: array.shape[1:] for name, array in self.inputs.items()}

    @classmethod
    def from_arrays(
        cls,
        inputs: Mapping[str, np.ndarray],
        label: np.ndarray,
        splits: Mapping[str, np.ndarray],
        classes: Sequence[str] | None = None,
        normalize: str = "none",
        roles: Roles | None = None,
    ) -> "DataSet":
        """Make a data set of arrays in memory.

        Args:
            inputs: Name -> array (N, ...).
            label: (N,) number of the class.
            splits: Row numbers of `train`, `validation` and `test`; one left out is empty.
            classes: Default: the numbers 0 to the largest label.
            normalize: As `data.normalize`.
            roles: What rows bring beside.
        """
        numbers = np.asarray(label, dtype=np.int64)
        names = list(classes) if classes else [str(i) for i in range(int(numbers.max()) + 1)]
        rows = {key: np.sort(np.asarray(splits.get(key, ()), dtype=np.int64)) for key in SPLITS}
        normalization = Normalization.fit(normalize, inputs, rows["train"])
        roles = roles or Roles()
        arrays = {f"input {name}": array for name, array in inputs.items()}
        arrays |= {"label": numbers} | {f"split {key}": part for key, part in rows.items()}
        for name, mean, std in normalization.moments():
            arrays |= {f"mean {name}": mean, f"std {name}": std}
        content = _digest([names, normalize], arrays)
        role_content = {
            role: _digest(roles.names.get(role), {role: values})
            for role, values in roles.values.items()
        }
        return cls(dict(inputs), numbers, names, rows, normalization, content, roles, role_content)


def _digest(words: Any, arrays: Mapping[str, np.ndarray]) -> str:
    sha = hashlib.sha256(json.dumps(words).encode())
    for name, array in arrays.items():
        sha.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        for rows in row_chunks(array) if array.ndim else [...]:
            sha.update(array[rows].tobytes())  # C order, however the file is laid out
    return sha.hexdigest()
