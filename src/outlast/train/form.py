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
    parameters: dict[str, tuple[torch.Size, torch.dtype, tuple[int, ...]]]
    transient: dict[str, bool]  # of the buffers that are not None: no part of the state dict
    plain: set[str]  # attributes of modules that are no buffers, nor parameters, nor modules
    others: set[str]  # buffers that are not None, and modules with an extra state
    things: dict[str, nn.Parameter]  # the parameters themselves
    kinds: dict[str, type]  # of the modules

    @classmethod
    def of(cls, network: nn.Module) -> "_Seen":
        modules = dict(network.named_modules(remove_duplicate=False))
        parameters = dict(network.named_parameters(remove_duplicate=False))
        buffers = list(network.named_buffers(remove_duplicate=False))
        plain = nn.Module.get_extra_state
        extra = {name for name, one in modules.items() if type(one).get_extra_state is not plain}
        return cls(
            modules=set(modules),
            parameters={name: _layout(parameter) for name, parameter in parameters.items()},
            transient={name: _is_transient(modules, name) for name, _ in buffers},
            plain={
                f"{name}.{leaf}".lstrip(".") for name, one in modules.items() for leaf in vars(one)
            },
            others={name for name, _ in buffers} | {f"{name}.get_extra_state()" for name in extra},
            things=parameters,
            kinds={name: type(one) for name, one in modules.items()},
        )


def _layout(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, tuple[int, ...]]:
    """Return shape, dtype and strides; those of sizes that are one say nothing."""
    is_strided = tensor.layout == torch.strided and not tensor.is_nested
    strides = tensor.stride() if is_strided and tensor.numel() else ()
    pairs = zip(tensor.shape, strides, strict=False)
    return tensor.shape, tensor.dtype, tuple(stride for size, stride in pairs if size > 1)


def _is_transient(modules: dict[str, nn.Module], name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    return leaf in modules[path]._non_persistent_buffers_set


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
            **{
                f"has another {what}": {
                    name for name in old.keys() & new.keys() if old[name][part] != new[name][part]
                }
                for part, what in enumerate(("shape", "dtype", "layout in memory"))
            },
            "is another one than at first, which the optimizer does not train": {
                name
                for name in old.keys() & new.keys()
                if first.things[name] is not now.things[name] and old[name] == new[name]
            },
            "is of another class": {
                name
                for name in first.kinds.keys() & now.kinds.keys()
                if first.kinds[name] is not now.kinds[name]
            },
            "was a plain attribute": now.transient.keys() & first.plain,
            "is persistent or not, unlike at first": {
                name
                for name in first.transient.keys() & now.transient.keys()
                if first.transient[name] != now.transient[name]
            },
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
