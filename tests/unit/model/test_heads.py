"""Auxiliary heads: what they read, what they give back, how they are saved."""

import pytest
import torch
from torch import Tensor, nn

from outlast.errors import ModelError
from outlast.model.heads import (
    Adversary,
    Regression,
    StudyNetwork,
    count_features,
    find_head,
    reverse_gradient,
    split_weights,
)


class Net(nn.Module):
    """A body and a head; the representation is what the head gets."""

    def __init__(self, name: str = "head") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 5)
        self.name = name
        setattr(self, name, nn.Linear(5, 2))

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = getattr(self, self.name)(self.body(rows).tanh())
        return result


ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_the_reversed_gradient_is_scaled(strength: float) -> None:
    """Identity forward, -strength backward (Ganin and Lempitsky 2015, eq. 7 and 8)."""
    values = torch.randn(5, requires_grad=True)
    forward = reverse_gradient(values, strength)
    assert torch.equal(forward, values)
    (forward * torch.arange(5.0)).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, -strength * torch.arange(5.0))


def test_the_strength_scales_what_reaches_the_network_alone() -> None:
    """The adversary's own gradient does not depend on it."""
    gradients = []
    for strength in (0.5, 2.0):
        network = Net()
        study = StudyNetwork(network, "auto", Adversary(5, 3))
        torch.manual_seed(1)
        for parameter in study.adversary.parameters():  # type: ignore[union-attr]
            nn.init.normal_(parameter)
        confound = study(ROWS, strength=strength).confound
        assert confound is not None
        nn.functional.cross_entropy(confound, torch.tensor([0, 1, 2, 0])).backward()
        own = study.adversary.layers[0].weight.grad  # type: ignore[union-attr,index]
        gradients.append((own, network.body.weight.grad))
        assert network.head.weight.grad is None, "the head does not feel the adversary"
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.allclose(4 * gradients[0][1], gradients[1][1])


def test_both_heads_read_the_input_of_the_last_layer() -> None:
    """And logits are those of the network alone."""
    network = Net()
    study = StudyNetwork(network, "auto", Adversary(5, 3), Regression(5, unit=False))
    outputs = study(ROWS, strength=0.1)
    representation = network.body(ROWS).tanh()
    assert torch.equal(outputs.logits, network(ROWS))
    assert study.adversary is not None
    assert study.regression is not None
    assert torch.equal(outputs.confound, study.adversary(representation, 0.1))
    assert torch.equal(outputs.target, study.regression(representation))
    assert outputs.target is not None
    assert outputs.target.shape == (4,)


def test_a_unit_regression_ends_in_a_sigmoid() -> None:
    """Predictions lie in (0, 1)."""
    plain, unit = Regression(5, unit=False), Regression(5, unit=True)
    unit.load_state_dict(plain.state_dict())
    representation = torch.randn(7, 5)
    assert torch.equal(unit(representation), plain(representation).sigmoid())


def test_without_heads_nothing_is_hooked() -> None:
    """Any network will do then, with no layer of a known name."""
    network = Net("output")
    study = StudyNetwork(network)
    outputs = study(ROWS)
    assert torch.equal(outputs.logits, network(ROWS))
    assert outputs.confound is outputs.target is None
    assert not network.output._forward_pre_hooks  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("name", ["head", "classifier", "fc"])
def test_auto_finds_the_usual_names(name: str) -> None:
    """The first of head, classifier, fc."""
    network = Net(name)
    assert find_head(network, "auto") is getattr(network, name)
    assert count_features(network, "auto", [ROWS]) == 5


def test_a_head_by_path() -> None:
    """Any module, by its dotted path; of a layer that no forward pass reaches there is no input."""
    network = nn.Sequential(Net(), nn.Linear(2, 2))
    assert find_head(network, "0.head") is network[0].head
    assert count_features(network, "1", [ROWS]) == 2
    network[0].unused = nn.Linear(9, 9)
    with pytest.raises(ModelError, match=r"model.head: 0.unused takes no part"):
        count_features(network, "0.unused", [ROWS])
    with pytest.raises(ModelError, match=r"no module head or classifier or fc.* modules are 0, 1"):
        find_head(network, "auto")
    with pytest.raises(ModelError, match=r"no module 0\.heat"):
        StudyNetwork(network, "0.heat", Adversary(2, 2))


def test_counting_features_leaves_the_network_as_it_was() -> None:
    """No hook, no mode and no running statistic is left behind."""
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    network.add_module("head", nn.Linear(4, 2))
    network.train()
    assert count_features(network, "auto", [ROWS]) == 4
    assert network.training
    assert int(network[1].num_batches_tracked) == 0
    assert not network.head._forward_pre_hooks


def test_weights_of_network_and_heads_are_told_apart() -> None:
    """The network's have plain names, strictly loadable; the heads' are below their own."""
    study = StudyNetwork(Net(), "auto", Adversary(5, 3), Regression(5, unit=False, mean=2.0))
    network, heads = split_weights(study.state_dict())
    Net().load_state_dict(network, strict=True)
    assert {key.split(".")[0] for key in heads} == {"adversary", "regression"}
    assert float(heads["regression.mean"]) == 2.0


class Odd(Net):
    """A head that is called in an unusual way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        if way == "in place":
            self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 2))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.body(rows).tanh() * 2  # which autograd does not keep
        if self.way == "detached":
            hidden = hidden.detach()
        if self.way == "by name":
            return self.head(input=hidden)  # type: ignore[no-any-return,operator]
        if self.way == "per position":
            return self.head(hidden.repeat(3, 1))[: len(rows)]  # type: ignore[no-any-return,operator]
        if self.way == "in evaluation" and self.training:
            return hidden[:, :2]
        return self.head(hidden)  # type: ignore[no-any-return,operator]


@pytest.mark.parametrize("way", ["by name", "in place"])
def test_a_head_is_read_in_whatever_way_it_is_called(way: str) -> None:
    """By keyword; or with a first layer that overwrites its input."""
    network = Odd(way)
    assert count_features(network, "auto", [ROWS], must_learn=True) == 5
    study = StudyNetwork(network, "auto", Adversary(5, 2))
    outputs = study(ROWS)
    assert outputs.representation is not None
    assert outputs.representation.min().item() < 0
    outputs.confound.sum().backward()


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("per position", "gets 12 rows for a batch of 4"),
        ("detached", "no trained layer lies before auto, so that the adversary could remove"),
    ],
)
def test_a_head_without_a_representation_is_refused(way: str, said: str) -> None:
    """Before training, with what to do."""
    with pytest.raises(ModelError, match=said):
        count_features(Odd(way), "auto", [ROWS], must_learn=True)


def test_a_head_that_training_does_not_reach_is_an_error() -> None:
    """Not a loss of 0 for ever."""
    study = StudyNetwork(Odd("in evaluation"), "auto", Adversary(5, 2))
    study.eval()(ROWS)
    with pytest.raises(ModelError, match="took no part in the network's forward"):
        study.train()(ROWS)
