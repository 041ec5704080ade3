"""What each rank holds for itself, and a state of rank 0 alone: it must be the same on all.

The ranks exchange gradients and buffers. A parameter that ``forward`` itself moves, frozen or
trained, or an extra state that depends on the rows, is each rank's own: the ranks would train
different networks, and after a resume it would be rank 0's.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.files import digest, digest_values
from outlast.model.copies import is_plain
from outlast.train.layout import strides_of


def refuse_apart(network: nn.Module, ranks: Distributed) -> None:
    """Refuse to go on where the ranks have moved apart. Collective.

    Raises:
        ModelError: They have. The same on every rank.
    """
    if ranks.world_size == 1:
        return
    for name, module in network.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ModelError(
                f"model.network: {name} has max_norm, which shortens the rows that it looks up, on"
                " each rank others; normalize in forward, or set launch.processes: 1"
            )
    own = held_apart(network)
    if len(set(ranks.gather(digest_values(own)))) == 1:
        return
    first, *others = ranks.gather(own)
    name = next((key for key in first if any(other.get(key) != first[key] for other in others)), "")
    raise ModelError(
        f"model.network: {name} has become another on each rank, and a state holds that of one:"
        " numbers of this run would be wrong, and a resumed one would differ; move nothing but"
        " buffers in forward, which the ranks exchange, or set launch.processes: 1"
    )


def held_apart(network: nn.Module) -> dict[str, str]:
    """Return what no collective makes equal: a name for people, and what tells its content."""
    weights = dict(network.named_parameters())
    found = {
        f"its {'' if weight.requires_grad else 'frozen '}parameter {name}": content
        for (name, weight), content in zip(weights.items(), _sums_of(weights.values()), strict=True)
    }
    for name, buffer in network.named_buffers():
        if not is_plain(buffer):  # the ranks exchange no others
            found[f"its sparse buffer {name}"] = _content(buffer)
    for path, module in network.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            place = f"{path}.get_extra_state()" if path else "its get_extra_state()"
            found[place] = _content(module.get_extra_state())
    return found


@torch.no_grad()
def _sums_of(weights: Iterable[Tensor]) -> list[str]:
    """Return the sum of each tensor's bits as integers: one pass, the same on any threads.

    Not its ``_version``, which does not count what is done to ``.data``. One wait for the device.
    """
    sums = [sum_of_bits(weight) for weight in weights]
    if not sums:
        return []
    return [str(value) for value in torch.stack([one.to(sums[0].device) for one in sums]).tolist()]


def sum_of_bits(weight: Tensor) -> Tensor:
    """Return the sum of a plain tensor's bits as integers, an int64 scalar on its device."""
    if weight.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=weight.device)
    in_one_piece = weight.stride() == strides_of(weight)
    piece = weight if in_one_piece else weight.contiguous()
    flat = piece.as_strided((piece.numel(),), (1,))
    size = flat.element_size()
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)
    if flat.numel() * size % 8 == 0:  # the larger the word, the faster
        word = torch.int64
        flat = flat.clone() if flat.storage_offset() * size % 8 else flat
    return flat.view(word).sum()


def parts_of(value: Tensor) -> list[Tensor]:
    """Return the plain tensors that a sparse one is made of; none of what is of another kind."""
    if value.layout == torch.sparse_coo:
        return [value._indices(), value._values()]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [value.ccol_indices(), value.row_indices(), value.values()]
    return []


def _content(value: Any) -> str:
    """Return something small that is the same for equal content; of plain values and tensors."""
    if isinstance(value, Tensor) and not is_plain(value):
        return repr([value.shape, value.dtype, *map(_content, parts_of(value))])
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {digest(content)}"
    if isinstance(value, dict):
        return repr(sorted((repr(key), _content(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return repr(sorted(_content(item) for item in value))
    if isinstance(value, list | tuple):
        return repr([_content(item) for item in value])
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray):
        return repr(value)
    return type(value).__name__  # the first save refuses what it cannot read back
