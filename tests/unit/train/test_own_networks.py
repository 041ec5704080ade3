"""Networks of the user's own: what they keep, and where, is as it was after a stop anywhere."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from small_run import make_trainer, small_config, small_data
from test_resume import numbers, stop_after
from torch import Tensor, nn

from outlast.errors import CheckpointError, InterruptedRunError, ModelError
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


def trainer_of(kind: Callable[[], nn.Module], folder: Path, **training: Any) -> Trainer:
    """A trainer for it, made anew as in each attempt."""
    folder.mkdir(exist_ok=True)
    config = small_config(**training)
    parts = make_trainer(folder, small_data(), config)
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
    return [leaves(item) for item in (best["weights"], buffers, state, numbers(history))]


def keeps_the_law(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Stopped once, anywhere, a run of new objects ends as the undisturbed one does."""
    straight = trainer_of(kind, tmp_path / "straight")
    expected = end_of(straight, tmp_path / "straight", straight.train(3, 0))
    for stop in STOPS:
        folder = tmp_path / f"stop-{stop}"
        first = trainer_of(kind, folder)
        stop_after(first, stop)
        with pytest.raises(InterruptedRunError):
            first.train(3, 0)
        second = trainer_of(kind, folder)
        assert end_of(second, folder, second.train(3, 0)) == expected, stop


class KeepsActivation(Own):
    """For people who look: no number depends on it."""

    def forward(self, rows: Tensor) -> Tensor:
        self.attention = self.hidden(rows)
        return self.head(self.attention)


class Cached(Own):
    """Made once, in whichever pass comes first, and used in training."""

    def extra(self) -> None:
        self.cache: dict[int, Tensor] = {}

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) not in self.cache:
            self.cache[len(rows)] = self.head.weight.new_full((8,), float(len(rows)))
        return self.head(self.hidden(rows) * self.cache[len(rows)])


class OldWeightNorm(Own):
    """Which keeps the weight in a plain attribute, batch normalization beside it."""

    def extra(self) -> None:
        self.body = nn.utils.weight_norm(self.body)
        self.norm = nn.BatchNorm1d(8)

    def hidden(self, rows: Tensor) -> Tensor:
        return self.norm(self.body(rows)).tanh()


class OldSpectralNorm(Own):
    """The same, with buffers."""

    def extra(self) -> None:
        self.body = nn.utils.spectral_norm(self.body)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", [Own, KeepsActivation, Cached, OldWeightNorm, OldSpectralNorm])
def test_a_tensor_in_a_plain_attribute_is_allowed(kind: type[Own], tmp_path: Path) -> None:
    """Also one that validation has made."""
    keeps_the_law(kind, tmp_path)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_single_row_is_tried_on_a_copy_of_such_a_network_too(tmp_path: Path) -> None:
    """Torch copies no tensor that a gradient goes through."""
    data = small_data(train=32)
    trainer = trainer_of(OldWeightNorm, tmp_path)
    trainer.data = data
    trainer.config = small_config(batch_size=8, grad_accum_split=5)
    with pytest.raises(ModelError, match="cannot train on one row"):
        trainer.train(1)


def test_training_goes_on_after_a_save_in_validation(tmp_path: Path) -> None:
    """The next copy is made in the memory of the one before, wherever that was made."""
    trainer = trainer_of(Own, tmp_path)
    seen = iter(range(1, 100))
    trainer._keeper.poll._is_save_due = lambda: next(seen) in (6, 7)  # type: ignore[method-assign]
    trainer.train(2, 0)


class ExtraDict(Own):
    """Gives its own dict, and a list in it."""

    def extra(self) -> None:
        self.table: Any = {"n": 0, "seen": []}

    def get_extra_state(self) -> Any:
        return self.table

    def set_extra_state(self, state: Any) -> None:
        self.table = state

    def note(self) -> None:
        """Once in each training pass."""
        self.table["n"] += 1
        self.table["seen"].append(self.table["n"])

    def factor(self) -> Any:
        """What the logits are scaled by."""
        return 1 + 0.01 * self.table["n"] + 0.001 * len(self.table["seen"])

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.note()
        return super().forward(rows) * self.factor()


class ExtraTensors(ExtraDict):
    """One tensor under two names, which a step changes in place."""

    def extra(self) -> None:
        mean = torch.zeros(1)
        self.table = {"mean": mean, "all": [mean]}

    def note(self) -> None:
        self.table["mean"].lerp_(self.body.weight.detach().mean(), 0.1)

    def factor(self) -> Any:
        return 1 + self.table["all"][0]


class ExtraBare(ExtraTensors):
    """A tensor, and nothing around it."""

    def get_extra_state(self) -> Any:
        return self.table["mean"]

    def set_extra_state(self, state: Any) -> None:
        self.table = {"mean": state, "all": [state]}


class ExtraSet(ExtraDict):
    """Nothing but a set."""

    def extra(self) -> None:
        self.table = set()

    def note(self) -> None:
        self.table.add(len(self.table))

    def factor(self) -> Any:
        return 1 + 0.01 * len(self.table)


class ExtraCounter(ExtraDict):
    """A dict that knows of keys that it lacks."""

    def extra(self) -> None:
        self.table = Counter()

    def note(self) -> None:
        self.table[f"{len(self.table)}"] += 1

    def factor(self) -> Any:
        return 1 + 0.01 * self.table["3"] + 0.01 * len(self.table)


class ExtraOrder(ExtraDict):
    """A dict that is turned round."""

    def extra(self) -> None:
        self.table = OrderedDict(a=1.0, b=1.1, c=1.2)

    def note(self) -> None:
        self.table.move_to_end(next(iter(self.table)))

    def factor(self) -> Any:
        return next(iter(self.table.values()))


class Versioned(Own):
    """Reads a state of its first version in another way, as modules of torch's own do."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}body.bias"] = -state[f"{prefix}body.bias"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


EXTRA = [ExtraDict, ExtraTensors, ExtraBare, ExtraSet, ExtraCounter, ExtraOrder]


@pytest.mark.parametrize("kind", EXTRA)
def test_what_it_gives_may_be_its_own(kind: type[Own], tmp_path: Path) -> None:
    """The state is of its boundary, and of the types that the network knows."""
    keeps_the_law(kind, tmp_path)


def test_the_version_of_a_module_is_kept(tmp_path: Path) -> None:
    """In the state, and in the model."""
    keeps_the_law(Versioned, tmp_path)
    content = torch.load(tmp_path / "straight" / "model_best.pt", weights_only=True)
    again = Versioned()
    again.load_state_dict(content["weights"])
    assert torch.equal(again.body.bias, content["weights"]["body.bias"])


def test_best_weights_share_nothing_with_the_network(tmp_path: Path) -> None:
    """At whatever depth."""
    trainer = trainer_of(ExtraTensors, tmp_path)
    trainer.run.keep_best()
    best = trainer.run.best_weights
    before = leaves(best)
    trainer.train_epoch()
    assert leaves(dict(trainer.study.state_dict())) != leaves(dict(best))
    assert leaves(best) == before


def test_a_state_that_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    """In words, at the first save."""

    class Locked(ExtraDict):
        def get_extra_state(self) -> Any:
            return threading.Lock()

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(CheckpointError, match="correct its get_extra_state"):
        trainer_of(Locked, tmp_path).train(1)


class CountsEverywhere(Own):
    """In each pass, validation's too: in buffers of both kinds, in extra state, in a new buffer."""

    def extra(self) -> None:
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("short", torch.zeros(()), persistent=False)
        self.table = {"n": 0}

    def get_extra_state(self) -> Any:
        return self.table

    def set_extra_state(self, state: Any) -> None:
        self.table = state

    def forward(self, rows: Tensor) -> Tensor:
        self.passes += 1
        self.short = self.short + 1
        self.table["n"] += 1
        if not self.training:
            last = getattr(self, "seen", torch.zeros(0))
            self.register_buffer("seen", torch.cat([last, self.passes[None]]))
        factor = 1 + 0.01 * self.passes + 0.02 * self.short + 0.03 * self.table["n"]
        return super().forward(rows) * factor


def test_validation_is_not_counted_twice(tmp_path: Path) -> None:
    """After a stop within it, which the next attempt begins with its first batch."""
    keeps_the_law(CountsEverywhere, tmp_path)


def test_a_state_that_becomes_unreadable_is_refused(tmp_path: Path) -> None:
    """At that save, though the one before could be read: else it would start over for ever."""

    class Numpy(ExtraDict):
        def note(self) -> None:
            super().note()
            if self.table["n"] > 6:
                self.table["best"] = np.float64(1)

    with pytest.raises(CheckpointError, match="correct its get_extra_state"):
        trainer_of(Numpy, tmp_path).train(3, 0)
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    assert state["epoch"] == 1


class GetsOnly(Own):
    """Without the other half."""

    def get_extra_state(self) -> Any:
        return {"n": 1}


class ClearsFirst(ExtraDict):
    """Fills its own dict, and not one that it is given."""

    def set_extra_state(self, state: Any) -> None:
        self.table.clear()
        self.table.update(state)


class HidesItsBody(Own):
    """As networks do whose frozen part is large."""

    def extra(self) -> None:
        self.body.requires_grad_(False)

        def leave_out(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
            for name in [name for name in state if name.startswith(f"{prefix}body")]:
                del state[name]

        self._register_state_dict_hook(leave_out)


class Pair(NamedTuple):
    """No plain value."""

    a: int
    b: int


class GivesPair(ExtraDict):
    """A tuple that has a name."""

    def get_extra_state(self) -> Any:
        return Pair(1, 2)

    def set_extra_state(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (GetsOnly, "get_extra_state.. needs a set_extra_state"),
        (HidesItsBody, "body.weight.*no hook may leave out a parameter"),
        (GivesPair, "correct its get_extra_state"),
    ],
)
def test_a_state_that_does_not_come_back_is_refused_at_once(
    kind: type[Own], words: str, tmp_path: Path
) -> None:
    """In a line, and not by the first attempt after a kill."""
    trainer = trainer_of(kind, tmp_path)
    trainer._keeper.poll._every_seconds = 0
    with pytest.raises((ModelError, CheckpointError), match=words):
        trainer.train(1)
    assert trainer.run.position.epoch == 0


def test_set_extra_state_gets_a_copy(tmp_path: Path) -> None:
    """To do with as it likes, at a fresh start, too."""
    keeps_the_law(ClearsFirst, tmp_path)


class Mean(Own):
    """A running mean; where it is kept, and how, is varied."""

    persistent = True

    def keep(self, name: str, value: Tensor) -> None:
        """As a buffer."""
        self.register_buffer(name, value, persistent=self.persistent)

    def extra(self) -> None:
        self.keep("mean", torch.zeros(8))

    def update(self, hidden: Tensor) -> None:
        """In place."""
        self.mean.lerp_(hidden.mean(0), 0.1)

    def read(self) -> Tensor:
        """What is added to the representation."""
        return self.mean

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.hidden(rows)
        if self.training:
            self.update(hidden.detach())
        return self.head(hidden + self.read().float() * 1.001)


class BecomesFloat(Mean):
    """An integer at first."""

    def extra(self) -> None:
        self.keep("mean", torch.tensor(0))

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean()


class BecomesDouble(Mean):
    """float32 at first."""

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean.double() + 0.1 * hidden.double().mean(0)


class InTwoModules(Mean):
    """One tensor, known to both; another, of another shape than at first; in a list as well."""

    def extra(self) -> None:
        super().extra()
        self.sub = nn.Identity()
        self.sub.register_buffer("mean", self.mean, persistent=self.persistent)
        self.keep("grown", torch.zeros(0))
        self.keep("too", self.grown)
        self.holders = [self.mean]

    def update(self, hidden: Tensor) -> None:
        super().update(hidden)
        if len(self.grown) == 0:
            self.grown = self.too = torch.zeros(8)
        self.grown.lerp_(hidden.mean(0), 0.1)

    def read(self) -> Tensor:
        return self.sub.mean + self.holders[0] + (self.too if len(self.too) else 0)


class ComesApart(Mean):
    """One tensor under two names, until one name gets another."""

    def extra(self) -> None:
        super().extra()
        self.keep("first", self.mean)

    def update(self, hidden: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(0)

    def read(self) -> Tensor:
        return self.mean - self.first


class Joins(Mean):
    """Two tensors, of which training makes one; equal at first."""

    def extra(self) -> None:
        super().extra()
        self.keep("other", torch.zeros(8))

    def update(self, hidden: Tensor) -> None:
        self.other = self.mean
        super().update(hidden)

    def read(self) -> Tensor:
        return self.mean + self.other


class Expanded(Mean):
    """Not in place: all its rows are one."""

    def extra(self) -> None:
        self.keep("mean", torch.zeros(1, 8).expand(3, 8))

    def update(self, hidden: Tensor) -> None:
        self.mean = self.mean + 0.01 * hidden.mean(0)

    def read(self) -> Tensor:
        return self.mean.sum(0)


MEANS = [Mean, BecomesFloat, BecomesDouble, InTwoModules, ComesApart, Joins, Expanded]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", MEANS)
def test_a_buffer_is_as_it_has_become(kind: type[Mean], persistent: bool, tmp_path: Path) -> None:
    """Its dtype, and who else holds it."""
    keeps_the_law(type(kind.__name__, (kind,), {"persistent": persistent}), tmp_path)
