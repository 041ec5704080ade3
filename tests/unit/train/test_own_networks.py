"""Networks of the user's own that keep things at odd places: a stop anywhere changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import Own, end_of, keeps_the_law, trainer_of
from small_run import make_trainer, small_config, small_data
from torch import Tensor, nn

from outlast.errors import ModelError


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


class Versioned(Own):
    """Reads a state of its first version in another way, as modules of torch's own do."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}body.bias"] = -state[f"{prefix}body.bias"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_the_version_of_a_module_is_kept(tmp_path: Path) -> None:
    """In the state, and in the model."""
    keeps_the_law(Versioned, tmp_path)
    content = torch.load(tmp_path / "straight" / "model_best.pt", weights_only=True)
    again = Versioned()
    again.load_state_dict(content["weights"])
    assert torch.equal(again.body.bias, content["weights"]["body.bias"])


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


class Freezes(Own):
    """Its first layer, at its sixth step and for good; its bias until the ninth."""

    def extra(self) -> None:
        self.register_buffer("steps", torch.tensor(0))
        self.bias = nn.Parameter(torch.zeros(8))
        self.head.bias.requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            if self.steps == 6:
                self.body.requires_grad_(False)
                self.bias.requires_grad_(False)
            if self.steps == 9:
                self.bias.requires_grad_(True)
        return self.head(self.hidden(rows) + self.bias)


def test_what_has_been_frozen_stays_frozen(tmp_path: Path) -> None:
    """Though the constructor knows nothing of it."""
    keeps_the_law(Freezes, tmp_path)


class StopsNorm(Own):
    """Puts its normalization into evaluation, once, for the rest of the epoch."""

    def extra(self) -> None:
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("steps", torch.tensor(0))

    def hidden(self, rows: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            if self.steps in (2, 7):
                self.norm.eval()
        return self.norm(self.body(rows)).tanh()


class NeverTrains(StopsNorm):
    """Keeps it in evaluation from the start, as people do with a pretrained body."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        return self


@pytest.mark.parametrize("kind", [StopsNorm, NeverTrains])
def test_a_layer_that_was_put_into_evaluation_stays_there(kind: type[Own], tmp_path: Path) -> None:
    """Until the next epoch puts all of them into training."""
    keeps_the_law(kind, tmp_path, [2, 3, 9])


def test_a_parameter_that_validation_moves_is_refused(tmp_path: Path) -> None:
    """A stop within a validation would move it twice."""
    trainer = make_trainer(tmp_path)

    def move(module: nn.Module, *_: object) -> None:
        if not module.training:
            with torch.no_grad():
                next(module.parameters()).mul_(0.99)

    trainer.model.register_forward_hook(move)
    with pytest.raises(ModelError, match=r"validation changes its parameter .*make it a buffer"):
        trainer.train(1)


class DropsAlways(Own):
    """Monte-Carlo dropout: it stays on in evaluation."""

    def extra(self) -> None:
        self.drop = nn.Dropout(0.3)

    def hidden(self, rows: Tensor) -> Tensor:
        return self.drop(self.body(rows)).tanh()

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.drop.train()
        return self


class Killed(BaseException):
    """Nothing is saved for it."""


@pytest.mark.parametrize("validation", [29, 0])
@pytest.mark.parametrize("kind", [DropsAlways, StopsNorm])
def test_a_kill_after_the_save_of_an_epoch(
    kind: type[Own], validation: int, tmp_path: Path
) -> None:
    """The next epoch puts all layers into training, whatever the one before has made of them."""
    data = small_data(train=32, validation=validation)
    trainer = trainer_of(kind, tmp_path / "whole", data)
    expected = end_of(trainer, tmp_path / "whole", trainer.train(2, 0))
    trainer = trainer_of(kind, tmp_path / "killed", data)
    ask = trainer._keeper.poll.ask

    def die_in_epoch_2() -> Any:
        if (trainer.run.position.epoch, trainer.run.position.step) == (1, 2):
            raise Killed
        return ask()

    trainer._keeper.poll.ask = die_in_epoch_2  # type: ignore[method-assign]
    with pytest.raises(Killed):
        trainer.train(2, 0)
    trainer._keeper._writer.drain()
    trainer = trainer_of(kind, tmp_path / "killed", data)
    assert end_of(trainer, tmp_path / "killed", trainer.train(2, 0)) == expected


class CountsModes(Own):
    """Counts in a buffer how often it is put into each mode."""

    def extra(self) -> None:
        self.register_buffer("entered", torch.zeros(2))

    def train(self, mode: bool = True) -> Any:
        if "entered" in self._buffers:
            self.entered[int(mode)] += 1
        return super().train(mode)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.hidden(rows)) * (1 + self.entered[0] * 0.1 + self.entered[1] * 0.01)


class DrawsMask(Own):
    """Variational dropout: a mask for each epoch, drawn when training begins; one of validation."""

    def extra(self) -> None:
        self.register_buffer("mask", torch.ones(8))

    def train(self, mode: bool = True) -> Any:
        if "mask" in self._buffers:
            self.mask.copy_(torch.rand(8))
        return super().train(mode)

    def hidden(self, rows: Tensor) -> Tensor:
        return super().hidden(rows) * self.mask


class Merges(Own):
    """Adds a second weight to the first for validation, and takes it out again for training."""

    def extra(self) -> None:
        self.low = nn.Parameter(torch.full((8, 4), 0.1))
        self.register_buffer("is_merged", torch.zeros((), dtype=torch.bool))

    def train(self, mode: bool = True) -> Any:
        if "is_merged" in self._buffers and bool(self.is_merged) == mode:
            self.body.weight.data += -self.low.data if mode else self.low.data
            self.is_merged.fill_(not mode)
        return super().train(mode)

    def hidden(self, rows: Tensor) -> Tensor:
        hidden = self.body(rows)
        return (hidden if self.is_merged else hidden + rows @ self.low.T).tanh()


@pytest.mark.parametrize("kind", [CountsModes, DrawsMask, Merges])
def test_what_a_change_of_mode_does_is_done_once(kind: type[Own], tmp_path: Path) -> None:
    """Stopped within an epoch, within a validation, and between them."""
    keeps_the_law(kind, tmp_path, [1, 3, 4, 5, 6, 7, 9, 10, 11, 17])
