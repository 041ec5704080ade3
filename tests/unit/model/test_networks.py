import pytest
import torch

from outlast.errors import ModelError
from outlast.model.build import build_network
from outlast.model.networks import BUILT_IN
from outlast.sections import ModelSection

# network, row shape of each input
FITTING = [
    ("mlp", [(7,)]),
    ("mlp", [(3, 4), (5,), (2, 2, 2)]),
    ("cnn1d", [(3, 20)]),
    ("cnn1d", [(20,)]),
    ("cnn1d", [(2, 1)]),
    ("cnn2d", [(3, 8, 9)]),
    ("cnn2d", [(8, 8)]),
    ("cnn2d", [(1, 2, 50)]),
]


def named(shapes: list[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Give the inputs names."""
    return {f"input{index}": shape for index, shape in enumerate(shapes)}


@pytest.mark.parametrize(("network", "shapes"), FITTING)
@pytest.mark.parametrize("num_outputs", [1, 4])
def test_rows_of_any_fitting_shape_give_logits(
    network: str, shapes: list[tuple[int, ...]], num_outputs: int
) -> None:
    """Logits are (rows, outputs), for several rows and for one; every parameter learns."""
    module = build_network(ModelSection(network=network), named(shapes), num_outputs)
    for rows in (5, 1):
        logits = module(*(torch.randn(rows, *shape) for shape in shapes))
        assert logits.shape == (rows, num_outputs)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("network", "shapes", "said"),
    [
        ("cnn1d", [(3, 4, 5)], r"rows of shape \(3, 4, 5\) do not fit a 1-d convolution"),
        ("cnn1d", [()], r"rows of shape \(\)"),
        ("cnn2d", [(9,)], r"rows of shape \(9,\) do not fit a 2-d convolution"),
        ("cnn1d", [(3, 8), (3, 8)], r"rows of shape \{'input0': \(3, 8\), 'input1': \(3, 8\)\}"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(
    network: str, shapes: list[tuple[int, ...]], said: str
) -> None:
    """Rows that a network cannot take are an error that names their shape."""
    with pytest.raises(ModelError, match=said):
        build_network(ModelSection(network=network), named(shapes), 2)


def test_every_input_of_an_mlp_counts() -> None:
    """A change in any input changes the logits."""
    module = build_network(ModelSection(), {"a": (3,), "b": (2, 2)}, 2).eval()
    rows = [torch.randn(4, 3), torch.randn(4, 2, 2)]
    before = module(*rows)
    for index in range(2):
        changed = [rows[i] + (i == index) for i in range(2)]
        assert not torch.equal(module(*changed), before)


def test_options_shape_the_network() -> None:
    """hidden, channels, kernel_size, batch_norm and dropout are what they are called."""
    mlp = build_network(ModelSection(options={"hidden": [9], "dropout": 0.5}), {"x": (4,)}, 3)
    assert [tuple(p.shape) for p in mlp.parameters()] == [(9, 4), (9,), (3, 9), (3,)]
    assert [m.p for m in mlp.modules() if isinstance(m, torch.nn.Dropout)] == [0.5]
    options = {"channels": [6], "kernel_size": 5, "batch_norm": True}
    cnn = build_network(ModelSection(network="cnn1d", options=options), {"x": (2, 30)}, 3)
    assert next(tuple(p.shape) for p in cnn.parameters()) == (6, 2, 5)
    assert any(isinstance(m, torch.nn.BatchNorm1d) for m in cnn.modules())


@pytest.mark.parametrize("network", sorted(BUILT_IN))
def test_the_last_layer_is_called_head(network: str) -> None:
    """Every built-in network ends in a linear layer `head`, which gives its logits."""
    shape = {"mlp": (6,), "cnn1d": (2, 9), "cnn2d": (2, 6, 6)}[network]
    module = build_network(ModelSection(network=network), {"x": shape}, 3).eval()
    seen: list[torch.Tensor] = []
    module.head.register_forward_hook(lambda _m, _i, output: seen.append(output))
    logits = module(torch.randn(2, *shape))
    assert isinstance(module.head, torch.nn.Linear)
    assert seen[0] is logits


def test_an_mlp_takes_inputs_of_one_value_per_row() -> None:
    """An array (N,) beside one of (N, 3)."""
    network = BUILT_IN["mlp"](input_shapes=[(), (3,)], num_outputs=2)
    assert network(torch.zeros(5), torch.zeros(5, 3)).shape == (5, 2)
