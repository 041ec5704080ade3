"""What an array must be to enter a network: real numbers, one row per label, finite.

Everything here goes through an array in chunks: it may be a memory map larger than the memory.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from outlast.errors import DataError, listed

# what torch.from_numpy takes without a copy on every release; uint16 and above is not
DTYPES = frozenset(
    {"float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"}
)
# small: a chunk of uint8 grows eightfold where it is summed in float64
CHUNK_BYTES = 4 * 2**20


def row_chunks(array: np.ndarray) -> Iterator[slice]:
    """Cut the rows of ``array`` into slices of about ``CHUNK_BYTES``, at least one row each."""
    row_bytes = array.nbytes // max(1, len(array))
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, len(array), step):
        yield slice(start, start + step)


def require(key: str, name: str, existing: Sequence[str]) -> None:
    """Refuse a name that is not among the existing ones, with the nearest that is."""
    if name in existing:
        return
    near = difflib.get_close_matches(name, existing, n=1)
    advice = f"did you mean {near[0]}? " if near else ""
    raise DataError(f"{key}: {name!r} is not in the source; {advice}There: {listed(existing, 20)}")


def converted(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array in memory as a dtype that is stored, in the byte order of this machine."""
    _check_real(name, array)
    if array.dtype.name in DTYPES - {"float64"}:
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    with np.errstate(over="ignore"):  # what overflows is reported by check_finite
        return np.asarray(array, dtype=np.float32, order="C")


def check_usable_in_place(name: str, array: np.ndarray) -> None:
    """Refuse a memory-mapped array that would need a conversion: it is never copied."""
    _check_real(name, array)
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise DataError(
            f"data.inputs: {name!r} has dtype {array.dtype.str}, which cannot be used where it"
            f' lies; save it again with np.save("{name}.npy", array.astype("float32"))'
        )


def _check_real(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"data.inputs: {name!r} has dtype {array.dtype}; a network takes real numbers: encode"
            " text as integers, save real and imaginary parts as two channels, or leave it out"
        )


def as_text(label: np.ndarray) -> np.ndarray:
    """Return a label of bytes as text, any other as it is."""
    if label.dtype.kind != "S":
        return label
    try:
        return np.char.decode(label, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"data.label: bytes that are no UTF-8 ({error}); save text") from error


def check_label(label: np.ndarray, name: str, is_number: bool = False) -> None:
    """Refuse a label that is not one class per row, or one number where ``is_number``.

    Two values at least are needed in either case.
    """
    key, kind = f"data.label: {name!r}", label.dtype.kind
    if label.ndim != 1 or kind not in "biufU":
        raise DataError(
            f"{key} has shape {label.shape} and dtype {label.dtype}; one number or text per row"
            " is needed (one-hot: save its argmax)"
        )
    missing = _missing(label)
    if missing.any():
        raise DataError(
            f"{key} is missing in {missing.sum()} rows, first row {missing.argmax()} (from 0);"
            " remove these rows (a table reads empty, NA, None and null as missing: a class of"
            " that name needs another one)"
        )
    if is_number and kind not in "biuf":
        raise DataError(
            f"{key} holds {str(label[0])!r}, and data.threshold needs numbers; name another column,"
            " or remove data.threshold"
        )
    if is_number and np.isinf(label.astype(np.float64)).any():
        raise DataError(f"{key} is infinite in row {int(np.isinf(label).argmax())}; correct it")
    if (
        not is_number
        and kind == "f"
        and (broken := ~np.isfinite(label) | (label != np.floor(label))).any()
    ):
        first = broken.argmax()
        raise DataError(
            f"{key} holds {label[first]} in row {first}, no whole number; classes are integers or"
            " text: set data.threshold to make two of a continuous value"
        )
    if len(label) == 0:
        raise DataError(f"{key} has no rows; give a source with data")
    if (label == label[0]).all():
        raise DataError(f"{key} is {label[0]} in every row; two classes at least are needed")


def _missing(label: np.ndarray) -> np.ndarray:
    if label.dtype.kind == "f":
        return np.asarray(np.isnan(label))
    if label.dtype.kind == "U":
        # np.array(["a", nan]) turns a missing label into the text "nan"
        return np.isin(label, ["", "nan"])
    return np.zeros(len(label), dtype=bool)


def check_rows(inputs: Mapping[str, np.ndarray], rows: int) -> None:
    """Refuse arrays that have no value for each of the label's ``rows``."""
    for name, array in inputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise DataError(
                f"data.inputs: {name!r} has shape {array.shape}, and the label has {rows} rows;"
                " the first dimension of every array is the row (name other arrays, or save it"
                " again)"
            )
        if array.size == 0:
            raise DataError(f"data.inputs: {name!r} has shape {array.shape}: no values; leave out")


def check_finite(name: str, array: np.ndarray) -> None:
    """Refuse what is not finite as float32, which is what the network gets. Chunk by chunk."""
    if array.dtype.kind != "f":
        return
    count, first = 0, -1
    for rows in row_chunks(array):
        with np.errstate(over="ignore"):
            broken = ~np.isfinite(array[rows].astype(np.float32))
        if broken.any():
            per_row = broken.reshape(len(broken), -1).any(axis=1)
            first = rows.start + int(per_row.argmax()) if count == 0 else first
            count += int(broken.sum())
    if count:
        raise DataError(
            f"data.inputs: {name!r} holds {count} values that are missing, infinite or beyond"
            f" float32, first in row {first} (from 0); fill them, or remove the rows"
        )
