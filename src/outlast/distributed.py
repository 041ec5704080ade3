"""The ranks of one run: who am I, on which device, and collectives on small things.

Every collective here works on the host (gloo), so that asking the other ranks something never
waits for a GPU. Gradients are the exception: they are reduced where they lie.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from outlast.errors import ConfigError, LostRankError, PlaceError

T = TypeVar("T")


CPU = torch.device("cpu")


@contextmanager
def _with_all() -> Iterator[None]:
    """Do something with all ranks.

    Raises:
        LostRankError: One of them has ended. gloo's own words would only hide that.
    """
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise LostRankError from error


@dataclass(frozen=True)
class Distributed:
    """The place of this process among the ranks of a run. One rank needs no process group."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU

    @property
    def is_main(self) -> bool:
        """True on the rank that decides, writes and talks."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace ``tensor`` by its sum over the ranks, in place, and return it."""
        if self.world_size > 1:
            with _with_all():
                dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: T) -> T:
        """Return rank 0's ``value`` on every rank (pickled: for small or rare things)."""
        if self.world_size == 1:
            return value
        box = [value if self.is_main else None]
        with _with_all():
            dist.broadcast_object_list(box, src=0, device=CPU)
        return box[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        box: list[T | None] = [None] * self.world_size
        with _with_all():
            dist.all_gather_object(box, value)
        return box  # type: ignore[return-value]

    def gather_rows(self, rows: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Return the rows of all ranks as one host tensor, in the order of the ranks.

        Args:
            rows: This rank's rows, shape (sizes[rank], ...), any device.
            sizes: Number of rows of each rank. They may differ, and may be 0.
        """
        rows = rows.cpu()
        if self.world_size == 1:
            return rows
        # all_gather wants equal shapes: pad to the largest and cut again
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        with _with_all():
            dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.sum_(torch.zeros(1))


@contextmanager
def process_group(device: str, asked: int | None = None) -> Iterator[Distributed]:
    """Join the ranks that torchrun started, and leave them at the end.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
        asked: Number of ranks that there must be; None: as many as there are.

    Raises:
        ConfigError: ``cuda`` was asked for and there is none, or other ranks than asked for.
        PlaceError: This rank has no device, or does not meet the others.
        LostRankError: Another rank has ended.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if asked not in (None, world_size):
        raise ConfigError(
            [
                f"launch: nodes x processes ask for {asked} ranks, and torchrun has started"
                f" {world_size}; look at the job's nodes (launch.nodes) and at its torchrun command"
            ]
        )
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    place = _choose_device(device, local_rank)
    if world_size == 1:
        yield Distributed(device=place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    with _with_all():  # also what a user's network may ask of the others
        # both backends: the small host-side questions must not wait for the device
        _meet("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
        yield Distributed(rank, world_size, place)
        # Not after an error, which may be this rank's alone: NCCL would wait for the others.
        dist.destroy_process_group()


def _meet(backend: str) -> None:
    try:
        dist.init_process_group(backend)
    except RuntimeError as error:  # with another rank's end, or a network that is none
        raise PlaceError(
            [
                f"launch: the ranks could not meet ({' '.join(str(error).split())}); one has"
                " ended, or look at GLOO_SOCKET_IFNAME and at the host names of the nodes"
            ]
        ) from error


def _choose_device(name: str, local_rank: int) -> torch.device:
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and available == 0):
        return CPU
    if local_rank >= available:
        raise PlaceError(
            [
                f"launch.device: {name} with rank {local_rank} of this node, and the node shows"
                f" {available} GPU(s); lower launch.processes, ask for more GPUs, or use cpu"
            ]
        )
    return torch.device("cuda", local_rank)
