"""Parameters that lie in memory in another order than that of their indices."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import small_config, small_data, weights
from torch import Tensor, nn

from outlast.distributed import Distributed
from outlast.errors import CheckpointError, InterruptedRunError, ModelError
from outlast.objective.build import build_objective
from outlast.train.gradients import FlatGradients
from outlast.train.layout import form_of, load_optimizer, refuse_scattered
from outlast.train.run import build_optimizer
from outlast.train.trainer import Trainer


class Columns(nn.Module):
    """A weight that lies in memory column by column, and images whose channels lie together."""

    def __init__(self, outputs: int, *, in_rows: bool = False) -> None:
        super().__init__()
        weight = torch.randn(6, 4).t()
        self.weight = nn.Parameter(weight.contiguous() if in_rows else weight)
        self.images = nn.Conv2d(2, 6, 2)
        if not in_rows:
            self.images.to(memory_format=torch.channels_last)
        self.head = nn.Linear(12, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        pixels = rows.reshape(-1, 1, 2, 2).expand(-1, 2, -1, -1)
        hidden = torch.cat([rows @ self.weight, self.images(pixels).flatten(1)], 1)
        result: Tensor = self.head(hidden.tanh())
        return result


def trainer_of(
    folder: Path, build: Callable[[int], nn.Module] = Columns, **training: Any
) -> Trainer:
    """Return a trainer of what ``build`` makes for a number of outputs."""
    folder.mkdir(exist_ok=True)
    data, config = small_data(), small_config(0, **training)
    objective = build_objective(config, data)
    torch.manual_seed(0)
    model = build(objective.num_outputs)
    return Trainer(
        model=model,
        data=data,
        objective=objective,
        optimizer=build_optimizer(config.training, model),
        config=config,
        folder=folder,
    )


CLIPPED = {"max_grad_norm": 0.1, "quantile_grad_clip": True}


@pytest.mark.parametrize("clipping", [{}, CLIPPED], ids=["", "clipped"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_layout_changes_no_weight(
    tmp_path: Path, optimizer: str, clipping: dict[str, Any]
) -> None:
    """The fused kernels go through raw memory: gradients must lie there as their weights do."""
    trained = []
    for in_rows in (True, False):
        build = partial(Columns, in_rows=in_rows)
        trainer = trainer_of(tmp_path / str(in_rows), build, optimizer=optimizer, **clipping)
        trainer.train(3, 0)
        trained.append(weights(trainer))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_moments_go_on_in_the_layout_of_their_weights(tmp_path: Path, optimizer: str) -> None:
    """A run that was stopped ends in the bits of one that was not."""
    straight = trainer_of(tmp_path / "straight", optimizer=optimizer)
    straight.train(3, 0)
    stopped = trainer_of(tmp_path / "stopped", optimizer=optimizer)
    real = stopped._train_step

    def step(rows: Any) -> None:
        real(rows)
        if stopped.run.position.epoch == 1:
            stopped._keeper.poll._interrupt._note(15)

    stopped._train_step = step  # type: ignore[method-assign]
    with pytest.raises(InterruptedRunError):
        stopped.train(3, 0)
    resumed = trainer_of(tmp_path / "stopped", optimizer=optimizer)
    resumed.train(3, 0)
    assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_moments_of_another_layout_are_laid_out_anew(kind: Callable[..., Any]) -> None:
    """A network may choose its layout by the device: the next attempt may have another."""
    keywords: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    found = []
    for second in (True, False):
        torch.manual_seed(0)
        before, after = Columns(1, in_rows=True), Columns(1, in_rows=second)
        rows, state = torch.randn(5, 4), {}
        for model in (before, after):
            gradients = FlatGradients(model, Distributed())
            optimizer = kind(model.parameters(), lr=0.1, fused=True, **keywords)
            if state:
                model.load_state_dict(before.state_dict())
                load_optimizer(optimizer, state)
            for _ in range(2):
                gradients.zero()
                model(rows).square().mean().backward()
                optimizer.step()
            state = optimizer.state_dict()
        found.append(torch.cat([value.detach().flatten() for value in after.parameters()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "make",
    [lambda: torch.randn(1, 4).expand(3, 4), lambda: torch.randn(3, 8)[:, ::2]],
    ids=["expanded", "sliced"],
)
def test_weights_that_lie_scattered_are_refused(make: Callable[[], Tensor]) -> None:
    """Elements that share memory cannot be trained; the error names the parameter and the fix."""
    model = nn.Linear(4, 3)
    refuse_scattered(model)
    model.weight = nn.Parameter(make(), requires_grad=False)
    refuse_scattered(model)
    model.weight.requires_grad_()
    with pytest.raises(ModelError, match=r"parameter weight .*values\.clone\(\)"):
        refuse_scattered(model)
    model.weight = nn.Parameter(make().contiguous())
    refuse_scattered(model)


class Ordered(nn.Module):
    """Two layers alike, added in an order that is given: it may be that of a set."""

    def __init__(self, outputs: int, names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(4, 4))
        self.head = nn.Linear(4, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.head(self.b(self.a(rows).tanh()).tanh())
        return result


def test_moments_are_not_given_to_another_weight(tmp_path: Path) -> None:
    """A network that adds its layers in another order each time is refused, not trained wrong."""
    first = trainer_of(tmp_path, lambda outputs: Ordered(outputs, "ab"))
    first.train(2, 0)
    trainer_of(tmp_path, lambda outputs: Ordered(outputs, "ab")).train(3, 0)
    other = trainer_of(tmp_path, lambda outputs: Ordered(outputs, "ba"))
    with pytest.raises(CheckpointError, match=r"in another order, b\.weight for a"):
        other.train(4, 0)


def test_a_state_without_names_goes_on(tmp_path: Path) -> None:
    """Older states have none."""
    first = trainer_of(tmp_path)
    state = first.run.optimizer.state_dict()
    for group in state["param_groups"]:
        del group["param_names"]
    load_optimizer(first.run.optimizer, state)
    assert first.run.optimizer.param_groups[0]["param_names"][0] == "weight"


def test_the_kernel_of_a_saved_optimizer_is_not_taken_over() -> None:
    """A state may come from a GPU, whose fused kernels do what those of a CPU do not."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    saved = torch.optim.SGD([weight], momentum=0.9, fused=True).state_dict()
    optimizer = torch.optim.SGD([weight], momentum=0.9, fused=False)
    load_optimizer(optimizer, saved)
    assert optimizer.param_groups[0]["fused"] is False


def test_the_form_of_a_network_is_its_parameters_in_order() -> None:
    """Ranks compare it: order, shapes, layout, what is trained, and the order of buffers."""
    torch.manual_seed(0)
    frozen = Ordered(1, "ab")
    frozen.a.requires_grad_(False)
    buffered = Ordered(1, "ab")
    buffered.register_buffer("mean", torch.zeros(1))
    double = Ordered(1, "ab").double()
    different = [
        Ordered(1, "ab"),
        Ordered(1, "ba"),
        Ordered(2, "ab"),
        frozen,
        buffered,
        double,
        Columns(1),
        Columns(1, in_rows=True),
    ]
    assert len({form_of(model) for model in different}) == len(different)
    assert form_of(Ordered(1, "ab")) == form_of(different[0])
