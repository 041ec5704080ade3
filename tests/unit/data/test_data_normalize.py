import io

import numpy as np
import pytest
import torch

from outlast.data import arrays
from outlast.data.normalize import Normalization
from outlast.errors import DataError

RNG = np.random.default_rng(0)
ROWS = np.sort(RNG.permutation(200)[:120])
INPUTS = {
    "features": RNG.normal(1000, 3, (200, 5)).astype(np.float32),
    "signal": RNG.normal(-2, 9, (200, 3, 7)).astype(np.float16),
    "image": RNG.integers(0, 256, (200, 2, 4, 4), dtype=np.uint8),
    "age": RNG.normal(40, 10, 200),
}


def batch(rows: slice = slice(None)) -> list[torch.Tensor]:
    """Return rows of all inputs as a batch would hold them."""
    return [torch.tensor(array[rows], dtype=torch.float32) for array in INPUTS.values()]


@pytest.mark.parametrize("chunk_bytes", [1, 700, 2**22])
def test_standard_is_numpy(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    """Statistics are numpy's over the training rows: per feature, per channel, or one in all."""
    monkeypatch.setattr(arrays, "CHUNK_BYTES", chunk_bytes)
    fitted = Normalization.fit("standard", INPUTS, ROWS)
    assert [tuple(mean.shape) for mean in fitted.mean] == [(5,), (3, 1), (2, 1, 1), ()]
    scaled = fitted(batch())
    for array, tensor in zip(INPUTS.values(), scaled, strict=True):
        known = array[ROWS].astype(np.float64)
        axes = tuple(axis for axis in range(array.ndim) if axis != 1)
        mean, std = known.mean(axis=axes, keepdims=True), known.std(axis=axes, keepdims=True)
        assert tensor.dtype == torch.float32
        np.testing.assert_allclose(tensor.numpy(), (array - mean) / std, atol=2e-4)


def test_only_training_rows_count() -> None:
    """Other values in rows that do not train change nothing, to the bit."""
    changed = {name: array.copy() for name, array in INPUTS.items()}
    for array in changed.values():
        array[np.setdiff1d(np.arange(200), ROWS)] = 77
    first, second = (Normalization.fit("standard", data, ROWS) for data in (INPUTS, changed))
    assert all(torch.equal(a, b) for a, b in zip(first.mean, second.mean, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first.std, second.std, strict=True))


def test_order_of_rows_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the order of the row numbers nor the layout of the array changes a bit."""
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 700)
    first = Normalization.fit("standard", INPUTS, ROWS)
    fortran = {name: np.asfortranarray(array) for name, array in INPUTS.items()}
    second = Normalization.fit("standard", fortran, RNG.permutation(ROWS))
    assert all(torch.equal(a, b) for a, b in zip(first.mean, second.mean, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first.std, second.std, strict=True))


def test_constant_feature() -> None:
    """A feature that is constant in training becomes 0 there and keeps its scale elsewhere."""
    values = np.full((1001, 1), 0.1, dtype=np.float32)
    values[-1] = 0.6
    fitted = Normalization.fit("standard", {"x": values}, np.arange(1000))
    (scaled,) = fitted([torch.from_numpy(values.copy())])
    assert fitted.std[0].item() == 1
    assert (scaled[:1000] == 0).all()
    assert scaled[1000].item() == pytest.approx(0.5)


def test_values_are_those_that_the_network_gets() -> None:
    """Statistics are of the values as float32: what that cannot tell apart is constant."""
    values = 1 + 1e-9 * RNG.random((100, 1))
    assert Normalization.fit("standard", {"x": values}, np.arange(100)).std[0].item() == 1


def test_large_mean_does_not_cancel() -> None:
    """A spread that is small beside the mean is still measured."""
    values = (1e6 + RNG.normal(0, 1, (5000, 1))).astype(np.float32)
    fitted = Normalization.fit("standard", {"x": values}, np.arange(5000))
    assert fitted.std[0].item() == pytest.approx(values.astype(np.float64).std(), rel=1e-6)


def test_per_sample() -> None:
    """Each row is scaled by itself; a constant row becomes 0, not amplified rounding."""
    tensor = torch.tensor(INPUTS["signal"][:20], dtype=torch.float32)
    tensor[3], tensor[4] = 0, 0.1
    fitted = Normalization.fit("per_sample", {"x": INPUTS["signal"]}, ROWS)
    (scaled,) = fitted([tensor])
    others = [row for row in range(20) if row not in (3, 4)]
    assert (scaled[3] == 0).all()
    assert scaled[4].abs().max() < 1e-6
    assert scaled.mean(dim=(1, 2)).abs().max() < 1e-5
    torch.testing.assert_close(scaled[others].std(dim=(1, 2), correction=0), torch.ones(18))


def test_none_returns_the_list() -> None:
    """Without normalization the batch is handed back as it is."""
    inputs = batch()
    assert Normalization.fit("none", INPUTS, ROWS)(inputs) is inputs
    assert all(torch.equal(a, b) for a, b in zip(inputs, batch(), strict=True))


@pytest.mark.parametrize("kind", ["none", "standard", "per_sample"])
def test_empty_batch(kind: str) -> None:
    """A rank whose share is empty can call it too."""
    inputs = {"x": INPUTS["features"]}
    (scaled,) = Normalization.fit(kind, inputs, ROWS)([torch.empty(0, 5)])
    assert scaled.shape == (0, 5)


@pytest.mark.parametrize("kind", ["none", "standard", "per_sample"])
def test_state(kind: str) -> None:
    """The state survives a file that is read with weights_only, to the bit."""
    inputs = {name: INPUTS[name] for name in ("features", "signal")}
    fitted = Normalization.fit(kind, inputs, ROWS).to("cpu")
    file = io.BytesIO()
    torch.save(fitted.state(), file)
    file.seek(0)
    loaded = Normalization.from_state(torch.load(file, weights_only=True))
    assert (loaded.kind, loaded.names) == (kind, ("features", "signal"))
    first, second = fitted(batch()[:2]), loaded(batch()[:2])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_refused() -> None:
    """Statistics of no row, and rows of one value scaled by themselves, are refused."""
    with pytest.raises(DataError, match=r"data\.normalize: standard needs training rows"):
        Normalization.fit("standard", INPUTS, ROWS[:0])
    with pytest.raises(DataError, match=r"data\.normalize: per_sample.*'age'.*use standard"):
        Normalization.fit("per_sample", INPUTS, ROWS)
