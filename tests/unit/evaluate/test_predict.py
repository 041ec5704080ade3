import dataclasses

import numpy as np
import pytest
import torch

from outlast.data.dataset import DataSet
from outlast.errors import DataError
from outlast.evaluate.predict import predict
from outlast.model.build import build_network
from outlast.model.file import ModelFile
from outlast.sections import ModelSection

CPU = torch.device("cpu")
SPLITS = {"train": np.arange(40), "test": np.arange(40, 60)}


def make_data(shift: float = 0.0) -> DataSet:
    """Three classes, five features, standardized on 40 training rows."""
    generator = np.random.default_rng(0)
    inputs = {"signal": generator.normal(shift, 3.0, (60, 5)).astype(np.float32)}
    label = generator.integers(0, 3, 60)
    return DataSet.from_arrays(inputs, label, SPLITS, normalize="standard")


def make_model_file(data: DataSet) -> ModelFile:
    """Save-ready file of an untrained network."""
    torch.manual_seed(0)
    shapes = {name: list(shape) for name, shape in data.row_shapes.items()}
    network = build_network(ModelSection(), shapes, 3)
    return ModelFile(
        weights=network.state_dict(),
        config={"model": {}},
        classes=data.classes,
        row_shapes=shapes,
        num_outputs=3,
        normalization=data.normalization.state(),
        data_content=data.content,
        best={"epoch": 1, "val_selection": None},
        fingerprint="f",
    )


def test_logits_follow_the_order_of_the_rows_whatever_the_batch_size() -> None:
    """Batches of 7, which 20 rows do not divide, give the logits of the network itself."""
    data = make_data()
    model_file = make_model_file(data)
    rows = np.asarray(SPLITS["test"])[::-1].copy()
    expected_inputs = (data.inputs["signal"][rows] - data.normalization.mean[0].numpy()) / (
        data.normalization.std[0].numpy()
    )
    with torch.inference_mode():
        expected = model_file.build()(torch.from_numpy(expected_inputs))
    logits = predict(model_file, data, rows, CPU, batch_size=7).logits
    assert logits.shape == (20, 3)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected)


def test_normalization_is_that_of_the_model_file() -> None:
    """The same rows within a data set of other statistics get the same logits."""
    data, other = make_data(), make_data(shift=50.0)
    model_file = make_model_file(data)
    mixed = dataclasses.replace(data, normalization=other.normalization)
    rows = SPLITS["test"]
    expected = predict(model_file, data, rows, CPU).logits
    assert torch.equal(predict(model_file, mixed, rows, CPU).logits, expected)


def test_no_rows_give_no_logits() -> None:
    """An empty request is answered by an empty tensor of the right width."""
    data = make_data()
    logits = predict(make_model_file(data), data, np.arange(0), CPU).logits
    assert logits.shape == (0, 3)


def test_other_row_shape_is_refused() -> None:
    """Rows of another length are refused, with both shapes in the message."""
    data = make_data()
    model_file = make_model_file(data)
    shorter = dataclasses.replace(data, inputs={"signal": data.inputs["signal"][:, :4].copy()})
    with pytest.raises(DataError, match=r"\(5,\).*\(4,\)"):
        predict(model_file, shorter, SPLITS["test"], CPU)


def test_other_order_of_inputs_is_refused() -> None:
    """Two inputs of one shape in the wrong order would be swapped in silence; they are refused."""
    data = make_data()
    signal = data.inputs["signal"]
    swapped = dataclasses.replace(data, inputs={"b": signal, "a": signal})
    model_file = dataclasses.replace(make_model_file(data), row_shapes={"a": [5], "b": [5]})
    with pytest.raises(DataError, match=r"data\.inputs"):
        predict(model_file, swapped, SPLITS["test"], CPU)


def test_non_finite_logits_are_refused_by_row() -> None:
    """A NaN in the inputs is no prediction: the row is named."""
    data = make_data()
    model_file = make_model_file(data)
    data.inputs["signal"][47, 2] = np.nan
    with pytest.raises(DataError, match=r"1 of 20 rows \(first: row 47\)"):
        predict(model_file, data, SPLITS["test"], CPU)
