"""What each attempt builds anew, and no state can bring back once training has changed it."""

from dataclasses import dataclass

import torch
from torch import nn

from outlast.errors import ModelError

ADVICE = (
    "each attempt builds the network anew, and no state can bring that back: build everything in"
    " the constructor, and rather than setting a buffer to None keep it and a second one that tells"
    " whether it is in use"
)


@dataclass(frozen=True)
class _Seen:
    """Names, those of one tensor or module all."""

    modules: set[str]
    parameters: dict[str, torch.Size]
    others: set[str]  # buffers that are not None, and modules with an extra state

    @classmethod
    def of(cls, network: nn.Module) -> "_Seen":
        modules = dict(network.named_modules(remove_duplicate=False))
        parameters = network.named_parameters(remove_duplicate=False)
        buffers = network.named_buffers(remove_duplicate=False)
        plain = nn.Module.get_extra_state
        extra = {name for name, one in modules.items() if type(one).get_extra_state is not plain}
        return cls(
            modules=set(modules),
            parameters={name: parameter.shape for name, parameter in parameters},
            others={name for name, _ in buffers} | {f"{name}.get_extra_state()" for name in extra},
        )


class Form:
    """The parameters, buffers and modules of a network as its constructor has made them."""

    def __init__(self, network: nn.Module) -> None:
        """Note them as they are now."""
        self._network, self._first = network, _Seen.of(network)

    def refuse_changed(self) -> None:
        """Refuse what a kill would undo in silence, or end for good.

        A new buffer is no such thing, nor one of another shape: those come back.

        Raises:
            ModelError: With the names.
        """
        first, now = self._first, _Seen.of(self._network)
        old, new = first.parameters, now.parameters
        found = {
            "is gone or None": (old.keys() - new.keys()) | (first.others - now.others),
            "is new": new.keys() - old.keys(),
            "has another shape": {n for n in old.keys() & new.keys() if old[n] != new[n]},
            "is new, with its module": {
                name for name in now.others if name.rpartition(".")[0] not in first.modules
            },
        }
        words = [
            f"{name.removeprefix('network.')} {what}"
            for what, names in found.items()
            for name in sorted(names)
        ]
        if words:
            raise ModelError(
                f"model.network: training has changed it: {', '.join(words)}; {ADVICE}"
            )
