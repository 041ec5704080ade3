"""A parameter that is trained and that no state would hold."""

from typing import Any

import pytest
import torch
from own_networks import Own
from torch import nn

from outlast.errors import ModelError
from outlast.train.layout import refuse_unsaved


def leave_out(_network: nn.Module, state: dict[str, Any], *_rest: Any) -> None:
    """As a hook of torch's."""
    del state["body.weight"]


def rename(_network: nn.Module, state: dict[str, Any], *_rest: Any) -> None:
    """As a hook of torch's."""
    state["a"] = state.pop("0.body.weight")


class LeftOut(Own):
    """A backbone that nobody wants to see in a file; loading does not miss it."""

    def extra(self) -> None:
        self._register_state_dict_hook(leave_out)
        self.register_load_state_dict_post_hook(lambda _, keys: keys.missing_keys.clear())


def test_a_trained_parameter_that_is_left_out_is_refused() -> None:
    """A frozen one comes from the constructor; one under another name is there."""
    network = LeftOut()
    with pytest.raises(ModelError, match=r"parameter body.weight is trained, and its state_dict"):
        refuse_unsaved(network)
    network.body.weight.requires_grad_(False)
    refuse_unsaved(network)
    network.register_buffer("sparse", torch.eye(3).to_sparse())
    refuse_unsaved(network)
    renamed = nn.Sequential(Own())
    renamed._register_state_dict_hook(rename)
    refuse_unsaved(renamed)
