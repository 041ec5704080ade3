import numpy as np
import pytest
import torch

from outlast.data.batches import BatchReader
from outlast.data.dataset import DataSet
from outlast.data.normalize import Normalization

CPU = torch.device("cpu")


def two_inputs(normalize: str = "none") -> DataSet:
    """Twelve rows of a float64 vector and a uint8 image; labels 0, 1, 2 in turn."""
    dice = np.random.default_rng(0)
    inputs = {
        "vector": dice.normal(5, 2, (12, 3)),
        "image": dice.integers(0, 255, (12, 2, 4), dtype=np.uint8),
    }
    return DataSet.from_arrays(inputs, np.arange(12) % 3, {"train": np.arange(9)}, None, normalize)


def test_a_batch_holds_the_rows_in_the_order_asked_for() -> None:
    """Inputs come as float32 in the order of the data set, labels as int64, rows as given."""
    data, rows = two_inputs(), np.array([7, 2, 7, 11])
    batch = BatchReader(data, CPU).read(rows)
    for tensor, array in zip(batch.inputs, data.inputs.values(), strict=True):
        assert tensor.dtype == torch.float32
        assert np.array_equal(tensor.numpy(), array[rows].astype(np.float32))
    assert batch.label.dtype == torch.int64
    assert batch.label.tolist() == [1, 2, 1, 2]


def test_no_rows_give_empty_tensors() -> None:
    """An empty share still has the shapes and dtypes of a batch."""
    batch = BatchReader(two_inputs("standard"), CPU).read(np.array([], dtype=np.int64))
    assert [tuple(tensor.shape) for tensor in batch.inputs] == [(0, 3), (0, 2, 4)]
    assert batch.label.shape == (0,)


def test_a_batch_is_normalized_and_the_data_are_not_touched() -> None:
    """Each value is (x - mean) / std of the training rows; reading twice gives the same."""
    data = two_inputs("standard")
    before = {name: array.copy() for name, array in data.inputs.items()}
    reader = BatchReader(data, CPU)
    first, again = reader.read(np.arange(12)), reader.read(np.arange(12))
    train = data.inputs["vector"][:9]
    expected = (data.inputs["vector"] - train.mean(0)) / train.std(0)
    assert np.allclose(first.inputs[0].numpy(), expected, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(first.inputs, again.inputs, strict=True))
    assert all(np.array_equal(data.inputs[name], array) for name, array in before.items())


def test_float32_data_are_not_scaled_in_place() -> None:
    """A float32 array, which needs no conversion, is copied before it is normalized."""
    values = np.random.default_rng(0).normal(3, 1, (6, 2)).astype(np.float32)
    data = DataSet.from_arrays(
        {"x": values}, np.arange(6) % 2, {"train": np.arange(6)}, None, "standard"
    )
    before = values.copy()
    BatchReader(data, CPU).read(np.arange(6))
    assert np.array_equal(values, before)


def test_another_normalization_replaces_that_of_the_data() -> None:
    """A model's own normalization is applied, not the one of the data it predicts."""
    data = two_inputs("standard")
    batch = BatchReader(data, CPU, Normalization("none", tuple(data.inputs))).read(np.arange(12))
    assert torch.equal(batch.inputs[0], torch.from_numpy(data.inputs["vector"]).float())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_batch_on_the_device_is_that_on_the_host() -> None:
    """Pinned copies to a CUDA device carry the same values."""
    data, rows = two_inputs(), np.array([3, 1, 4])
    host, device = (BatchReader(data, torch.device(d)).read(rows) for d in ("cpu", "cuda"))
    for one, other in zip(host.inputs, device.inputs, strict=True):
        assert torch.equal(one, other.cpu())
    assert torch.equal(host.label, device.label.cpu())
