"""Networks of the user's own, and the law of resume for any of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import make_trainer, small_config, small_data
from test_resume import numbers, stop_after
from torch import Tensor, nn

from outlast.data.dataset import DataSet
from outlast.errors import InterruptedRunError
from outlast.train.trainer import Trainer

STOPS = [4, 5, 9, 17]  # an epoch has four steps, and two batches of validation


class Own(nn.Module):
    """Two layers; what else it keeps is for :meth:`extra` to say."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.extra()

    def extra(self) -> None:
        """Nothing."""

    def hidden(self, rows: Tensor) -> Tensor:
        """The representation."""
        return self.body(rows).tanh()

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.hidden(rows))


def trainer_of(
    kind: Callable[[], nn.Module], folder: Path, data: DataSet | None = None, **training: Any
) -> Trainer:
    """A trainer for it, made anew as in each attempt."""
    folder.mkdir(exist_ok=True)
    config = small_config(**training)
    parts = make_trainer(folder, data or small_data(), config)
    torch.manual_seed(0)
    network = kind()
    return Trainer(
        model=network,
        data=parts.data,
        objective=parts.objective,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9),
        config=config,
        folder=folder,
    )


def leaves(value: Any) -> Any:
    """Plain values that differ when a bit, a dtype, a type or an order does."""
    if isinstance(value, Tensor):
        return str(value.dtype), list(value.shape), value.reshape(-1).tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(key, leaves(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [leaves(item) for item in value]
    return value


def end_of(trainer: Trainer, folder: Path, history: dict[str, Any]) -> Any:
    """What a run ends with."""
    best = torch.load(folder / "model_best.pt", weights_only=True)
    buffers = dict(trainer.model.named_buffers(remove_duplicate=False))
    state = dict(trainer.model.state_dict())
    kept = best["weights"], best["buffers"]
    return [leaves(item) for item in (*kept, buffers, state, numbers(history))]


def keeps_the_law(
    kind: Callable[[], nn.Module], tmp_path: Path, stops: Sequence[int] = STOPS
) -> None:
    """Stopped once, anywhere, a run of new objects ends as the undisturbed one does."""
    straight = trainer_of(kind, tmp_path / "straight")
    expected = end_of(straight, tmp_path / "straight", straight.train(3, 0))
    for stop in stops:
        folder = tmp_path / f"stop-{stop}"
        first = trainer_of(kind, folder)
        stop_after(first, stop)
        with pytest.raises(InterruptedRunError):
            first.train(3, 0)
        second = trainer_of(kind, folder)
        assert end_of(second, folder, second.train(3, 0)) == expected, stop
