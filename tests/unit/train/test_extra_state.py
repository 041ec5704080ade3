"""What get_extra_state() gives: of its boundary, of its types, and refused where it is no state."""

import datetime
import threading
import time
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from own_networks import Own, keeps_the_law, leaves, trainer_of
from torch import Tensor, nn

from outlast.errors import ModelError, RepeatedFailureError
from outlast.train.readable import refuse_unreadable


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


EXTRA = [ExtraDict, ExtraTensors, ExtraBare, ExtraSet, ExtraCounter, ExtraOrder]


@pytest.mark.parametrize("kind", EXTRA)
def test_what_it_gives_may_be_its_own(kind: type[Own], tmp_path: Path) -> None:
    """The state is of its boundary, and of the types that the network knows."""
    keeps_the_law(kind, tmp_path)


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
    """In words, at the start."""

    class Locked(ExtraDict):
        def get_extra_state(self) -> Any:
            return threading.Lock()

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(ModelError, match=r"cannot pickle.*get_extra_state"):
        trainer_of(Locked, tmp_path).train(1)


def test_a_state_that_becomes_unreadable_is_refused(tmp_path: Path) -> None:
    """At that save, though the one before could be read: else it would start over for ever.

    And the next attempt before its first step: it would train an interval, and end so again.
    """

    class Numpy(ExtraDict):
        def note(self) -> None:
            super().note()
            if self.table["n"] > 6:
                self.table["best"] = np.float64(1)

    with pytest.raises(ModelError, match="correct its get_extra_state") as first:
        trainer_of(Numpy, tmp_path).train(3, 0)
    state = torch.load(tmp_path / "model_resume.pt", weights_only=True)
    assert state["epoch"] == 1
    again = trainer_of(Numpy, tmp_path)
    with pytest.raises(RepeatedFailureError) as second:
        again.train(3, 0)
    assert str(second.value).startswith(str(first.value))
    assert (again.run.position.epoch, again.run.position.step) == (1, 0)


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


class GivesLocal(GivesPair):
    """The same, of a class that nobody can find."""

    def get_extra_state(self) -> Any:
        return type("Hidden", (), {})()


class GivesDate(GivesPair):
    """Pickle takes it, and no state may be of it."""

    def get_extra_state(self) -> Any:
        return {"when": datetime.date(2024, 1, 1)}


class Reinterprets(Own):
    """A buffer that sees a weight as whole numbers: torch saves no such two."""

    def extra(self) -> None:
        self.register_buffer("bits", self.body.weight.detach().view(torch.int32))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (GetsOnly, "get_extra_state.. needs a set_extra_state"),
        (HidesItsBody, "body.weight.*no hook may leave out a parameter"),
        (GivesPair, "test_extra_state.Pair.; correct its get_extra_state"),
        (GivesLocal, "correct its get_extra_state"),
        (GivesDate, "datetime.date.; correct its get_extra_state"),
        (Reinterprets, "view the same data as different types"),
    ],
)
def test_a_state_that_does_not_come_back_is_refused_at_once(
    kind: type[Own], words: str, tmp_path: Path
) -> None:
    """In a line, before a step is trained in vain; and as soon as it has been corrected, it runs.

    Though the recipe knows nothing of that, as where it comes from a library.
    """
    for _ in range(2):
        trainer = trainer_of(kind, tmp_path)
        trainer._keeper.poll._every_seconds = 1e6
        with pytest.raises(ModelError, match=words):
            trainer.train(1)
        assert (trainer.run.position.epoch, trainer.run.position.step) == (0, 0)
    assert not (tmp_path / "model_resume.pt").exists()
    corrected = trainer_of(ExtraDict, tmp_path)
    assert corrected.recipe == trainer.recipe
    corrected.train(1)


def test_too_little_memory_is_not_the_network_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another time, there may be room."""
    for error in (MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: no memory")):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", Mock(side_effect=error))
            with pytest.raises(type(error)) as caught:
                refuse_unreadable({})
            assert caught.value is error


def test_what_stands_in_for_a_state_is_small_and_of_its_form() -> None:
    """No number is written, however many there are; lists that hold themselves are no trouble."""
    large = torch.zeros(1 << 28, dtype=torch.bool)
    endless: list[Any] = [large, (large, {"a": large[::2]})]
    endless.append(endless)
    started = time.perf_counter()
    refuse_unreadable({"a": OrderedDict(b=endless), "c": torch.eye(2).to_sparse()})
    assert time.perf_counter() - started < 1


def test_set_extra_state_gets_a_copy(tmp_path: Path) -> None:
    """To do with as it likes, at a fresh start, too."""
    keeps_the_law(ClearsFirst, tmp_path)
