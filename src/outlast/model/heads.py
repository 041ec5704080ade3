"""Auxiliary heads on the representation: an adversary against a confound, a regression."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outlast.errors import ModelError

AUTO_HEADS = ("head", "classifier", "fc")
HIDDEN = 64


class _Reversal(torch.autograd.Function):
    """Identity forward; the gradient times -strength backward (Ganin and Lempitsky 2015)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradients[0], None


def reverse_gradient(values: Tensor, strength: float) -> Tensor:
    """Return ``values`` as they are; their gradient is multiplied by ``-strength``."""
    result: Tensor = _Reversal.apply(values, strength)  # type: ignore[no-untyped-call]
    return result


def _perceptron(features: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def _run(layers: nn.Sequential, representation: Tensor) -> Tensor:
    """Return what the layers of a head give; the network may compute in another precision."""
    result: Tensor = layers(representation.to(next(layers.parameters()).dtype))
    return result


class Adversary(nn.Module):
    """Tells the confound from the representation, which learns to give nothing away."""

    def __init__(self, features: int, categories: int) -> None:
        """Linear(features, 64), ReLU, Linear(64, categories)."""
        super().__init__()
        self.layers = _perceptron(features, categories)

    def forward(self, representation: Tensor, strength: float) -> Tensor:
        """Return logits (rows, categories). ``strength`` scales the reversed gradient only."""
        logits: Tensor = _run(self.layers, reverse_gradient(representation, strength))
        return logits


class Regression(nn.Module):
    """Predicts a continuous target from the representation."""

    def __init__(self, features: int, unit: bool, mean: float = 0.0, std: float = 1.0) -> None:
        """Linear(features, 64), ReLU, Linear(64, 1).

        Args:
            features: Of the representation.
            unit: A sigmoid follows, for targets in [0, 1].
            mean: Of the training targets; predictions are on the standardized scale.
            std: The same, standard deviation.
        """
        super().__init__()
        self.layers = _perceptron(features, 1)
        self.unit = unit
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64))
        self.mean: Tensor
        self.std: Tensor

    def forward(self, representation: Tensor) -> Tensor:
        """Return predictions (rows,): in [0, 1], or standardized by ``mean`` and ``std``."""
        value = _run(self.layers, representation).squeeze(1)
        if not self.unit:
            return value
        # not in half precision, which has few numbers near 1
        return value.to(torch.promote_types(value.dtype, torch.float32)).sigmoid()

    def in_unit_of_target(self, prediction: Tensor) -> Tensor:
        """Return predictions (rows,) in the unit of ``data.target``, float64."""
        value = prediction.double()
        return value if self.unit else value * self.std + self.mean


@dataclass(frozen=True)
class Outputs:
    """What one forward pass gives.

    Attributes:
        logits: (rows, outputs) or (rows,).
        confound: Logits of the adversary, (rows, categories); None without one.
        target: Prediction of the regression, (rows,), on its own scale; None without one.
        representation: What the heads have read, (rows, features); None without a head.
    """

    logits: Tensor
    confound: Tensor | None = None
    target: Tensor | None = None
    representation: Tensor | None = None


class StudyNetwork(nn.Module):
    """The network of a study with its heads: what is trained, clipped and saved as one."""

    def __init__(
        self,
        network: nn.Module,
        head: str = "auto",
        adversary: Adversary | None = None,
        regression: Regression | None = None,
    ) -> None:
        """Put them together.

        Args:
            network: Gives the logits.
            head: Module of the network whose input is the representation; looked for only when
                there is a head to read it.
            adversary: Or None.
            regression: Or None.

        Raises:
            ModelError: The network has no such module.
        """
        super().__init__()
        self.network = network
        self.adversary, self.regression = adversary, regression
        self._read: list[Tensor] = []
        if adversary is not None or regression is not None:
            find_head(network, head).register_forward_pre_hook(self._keep, with_kwargs=True)

    @property
    def heads(self) -> dict[str, bool]:
        """Which heads there are, by name."""
        return {
            "adversary": self.adversary is not None,
            "regression": self.regression is not None,
        }

    def _keep(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        value = _first_of(inputs, named)
        # one row, of which squeeze() has made none
        value = value[None] if value.ndim < 2 else value
        # a copy: the head may begin with a layer that works in place
        self._read[:] = [value.flatten(1).clone()]

    def forward(self, *inputs: Tensor, strength: float = 0.0) -> Outputs:
        """Return logits, and what the heads say.

        Args:
            inputs: As the network takes them, float32.
            strength: Of the adversary at this epoch.
        """
        logits: Tensor = self.network(*inputs)
        if len(inputs[0]) == 1 and logits.ndim < 2 and logits.shape != (1,):
            logits = logits.reshape(1, -1)  # squeeze() takes the row away, too
        if self.adversary is None and self.regression is None:
            return Outputs(logits)
        if not self._read:
            raise ModelError(
                "model.head: this layer took no part in the network's forward(), so that the heads"
                " have nothing to read; name the last layer that always does"
            )
        representation = self._read.pop()
        return Outputs(
            logits,
            None if self.adversary is None else self.adversary(representation, strength),
            None if self.regression is None else self.regression(representation),
            representation,
        )


def split_weights(weights: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state dict of the network alone, and that of the heads."""
    prefix = "network."
    network = OrderedDict(
        (key[len(prefix) :], v) for key, v in weights.items() if key.startswith(prefix)
    )
    # the versions of the modules, which torch keeps in an attribute
    vars(network)["_metadata"] = {
        path[len(prefix) :]: v
        for path, v in getattr(weights, "_metadata", {}).items()
        if f"{path}.".startswith(prefix)
    }
    return network, {key: v for key, v in weights.items() if not key.startswith(prefix)}


def heads_from(
    weights: dict[str, Tensor], unit: bool
) -> tuple[Adversary | None, Regression | None]:
    """Build the heads again from what :func:`split_weights` has put aside of them."""
    parts: dict[str, dict[str, Tensor]] = {"adversary": {}, "regression": {}}
    for key, value in weights.items():
        name, _, rest = key.partition(".")
        parts[name][rest] = value
    adversary = regression = None
    if parts["adversary"]:
        first, last = (parts["adversary"][f"layers.{place}.weight"] for place in (0, 2))
        adversary = Adversary(first.shape[1], last.shape[0])
        adversary.load_state_dict(parts["adversary"], strict=True)
    if parts["regression"]:
        regression = Regression(parts["regression"]["layers.0.weight"].shape[1], unit)
        regression.load_state_dict(parts["regression"], strict=True)
    return adversary, regression


def find_head(network: nn.Module, name: str) -> nn.Module:
    """Return the final classification layer, whose input is the representation.

    Raises:
        ModelError: There is none of that name, or under ``auto`` of none of the usual ones.
    """
    found = dict(network.named_modules())
    names = AUTO_HEADS if name == "auto" else (name,)
    for candidate in names:
        module: nn.Module | None = found.get(candidate)
        if candidate and module is not None:
            return module
    children = ", ".join(key for key, _ in network.named_children()) or "none"
    raise ModelError(
        f"model.head: the network has no module {' or '.join(names)}, whose input would be the"
        f" representation; its modules are {children}: name the last layer"
    )


def _first_of(inputs: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """Return the first argument of a module, given by place or by name."""
    value: Tensor = inputs[0] if inputs else next(iter(named.values()))
    return value


def count_features(
    network: nn.Module, head: str, inputs: list[Tensor], *, must_learn: bool = False
) -> int:
    """Return the width of the representation, from one forward pass in evaluation mode.

    Args:
        network: Stays as it is.
        head: As ``model.head``.
        inputs: Some rows.
        must_learn: Refuse a representation that no trained layer makes: an adversary could
            change nothing of it.

    Raises:
        ModelError: The head is not reached, or its input is no representation of the rows.
    """
    read: list[Tensor] = []
    hook = find_head(network, head).register_forward_pre_hook(
        lambda _, given, named: read.append(_first_of(given, named)), with_kwargs=True
    )
    training = network.training
    network.eval()(*inputs)
    network.train(training)
    hook.remove()
    if not read:
        raise ModelError(
            f"model.head: {head} takes no part in the network's forward(), so that it has no"
            " representation as its input; name the last layer that does"
        )
    if len(read[0]) != len(inputs[0]):
        raise ModelError(
            f"model.head: {head} gets {len(read[0])} rows for a batch of {len(inputs[0])}; name a"
            " layer whose input has one row for each of the batch"
        )
    if must_learn and not read[0].requires_grad:
        raise ModelError(
            f"model.head: no trained layer lies before {head}, so that the adversary could remove"
            " nothing; give the network a hidden layer, or set adversary.strength to 0"
        )
    return read[0].flatten(1).shape[1]
