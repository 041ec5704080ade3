"""All gradients of a model in one flat buffer, summed over the ranks by one all-reduce.

Not DistributedDataParallel: it lays its buckets out anew after the first step of a process, the
ring then adds three or more ranks in another order, and a resumed run differs in the last bit
(docs/adr/0001-own-gradient-reduction.md has the measurement).
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from outlast.distributed import Distributed
from outlast.errors import ModelError
from outlast.model.copies import is_plain
from outlast.model.heads import Regression
from outlast.train.layout import strides_of

# by every backend; others travel as their bytes, since zero is the other ranks' part of a sum
SUMMED = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
}


class FlatGradients:
    """Gradients of one model as views into flat buffers, one per dtype.

    Backward adds into the views; parts of an accumulated batch and ranks with an empty share need
    no special care. A parameter that no row uses has a zero gradient on every number of ranks.
    """

    def __init__(self, model: nn.Module, distributed: Distributed) -> None:
        """Give every trained parameter its place. The model must be on its device already."""
        self._model, self._distributed = model, distributed
        self.flats = _allocate_views(model.parameters())
        self._forms: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._idle = _idle_buffers(model)

    def probe(self) -> Tensor:
        """Return a scalar that is finite where every gradient is, on the device.

        One pass: their sum. It overflows before any of them does by an order or two, which is
        as much the end of a run.
        """
        sums = [flat.sum() for flat in self.flats]
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum()

    def zero(self) -> None:
        """Forget the last step."""
        for flat in self.flats:
            flat.zero_()

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum the gradients over the ranks; buffers become those of rank 0.

        Rank 0's buffers travel against zeros of the others: what a network has counted or
        averaged must not depend on which ranks were alive when the state was saved. Those of a
        gradient's dtype are in its message; others, which are rare, have one of their own.

        Raises:
            ModelError: A buffer has changed its shape or dtype, so that ranks may differ in it.
        """
        if self._distributed.world_size == 1:
            return
        current = [b for name, b in self._buffers().items() if name not in self._idle]
        for flat in self.flats:
            self._sum(flat, [b for b in current if b.dtype == flat.dtype])
        dtypes = {flat.dtype for flat in self.flats}
        self._broadcast([b for b in current if b.dtype not in dtypes])

    def _sum(self, flat: Tensor, buffers: list[Tensor]) -> None:
        """Sum gradients in place; buffers of the same dtype come along, and become rank 0's."""
        pieces = [buffer.reshape(-1) for buffer in buffers]
        if not self._distributed.is_main:
            pieces = [torch.zeros_like(piece) for piece in pieces]
        message = torch.cat([flat, *pieces]) if pieces else flat
        self._distributed.sum_(message)
        if pieces:
            flat.copy_(message[: flat.numel()])
            _scatter(message[flat.numel() :], buffers)

    def _broadcast(self, buffers: list[Tensor]) -> None:
        """Replace buffers by those of rank 0."""
        for dtype in dict.fromkeys(buffer.dtype for buffer in buffers):
            alike = [buffer for buffer in buffers if buffer.dtype == dtype]
            message = torch.cat([buffer.reshape(-1) for buffer in alike])
            carrier = message if dtype in SUMMED else message.view(torch.uint8)
            if not self._distributed.is_main:
                carrier.zero_()
            self._distributed.sum_(carrier)
            _scatter(message, alike)

    @torch.no_grad()
    def sync_buffers(self) -> None:
        """Give every rank the buffers of rank 0, those included that no step needs."""
        if self._distributed.world_size > 1:
            self._broadcast(list(self._buffers().values()))

    def _buffers(self) -> dict[str, Tensor]:
        """Return the buffers as they are now: a forward pass may have put others in their place."""
        buffers = self._model.named_buffers()
        found = {name: b for name, b in buffers if is_plain(b) and b.numel() > 0}
        forms = {name: (buffer.shape, buffer.dtype) for name, buffer in found.items()}
        self._forms = self._forms or forms
        for name in sorted(forms.keys() | self._forms.keys()):
            if forms.get(name) != self._forms.get(name):
                raise ModelError(
                    f"model.network: its buffer {name} changes shape or dtype while it trains, and"
                    " the ranks exchange buffers; give it its full size from the start, or set"
                    " launch.processes: 1"
                )
        return found


def _idle_buffers(model: nn.Module) -> set[str]:
    """Name the buffers that no forward pass reads or none changes: no step need exchange them."""
    idle = set()
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, _NormBase) and module.momentum is not None:
            idle.add(f"{prefix}num_batches_tracked")
        if isinstance(module, Regression):
            idle |= {f"{prefix}mean", f"{prefix}std"}
    return idle


def _allocate_views(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    flats = []
    for dtype in dict.fromkeys(parameter.dtype for parameter in trained):
        group = [parameter for parameter in trained if parameter.dtype == dtype]
        size = sum(parameter.numel() for parameter in group)
        flat = torch.zeros(size, dtype=dtype, device=group[0].device)
        offset = 0
        for parameter in group:
            parameter.grad = flat.as_strided(parameter.shape, strides_of(parameter), offset)
            offset += parameter.numel()
        flats.append(flat)
    return flats


def _scatter(message: Tensor, tensors: list[Tensor]) -> None:
    offset = 0
    for tensor in tensors:
        tensor.copy_(message[offset : offset + tensor.numel()].view_as(tensor))
        offset += tensor.numel()
