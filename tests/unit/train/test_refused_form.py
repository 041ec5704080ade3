"""What training may not change in a network, for a resume could not bring it back."""

from pathlib import Path

import pytest
import torch
from own_networks import Own, trainer_of
from test_buffers import Mean
from torch import Tensor, nn

from outlast.errors import ModelError


class TurnsWeight(Mean):
    """QR gives a matrix that is laid out by columns."""

    def update(self, hidden: Tensor) -> None:
        self.unused.data = torch.linalg.qr(self.unused.data)[0]

    def extra(self) -> None:
        super().extra()
        self.unused = nn.Parameter(torch.eye(3))


class WidensWeight(TurnsWeight):
    """To another dtype."""

    def update(self, hidden: Tensor) -> None:
        self.unused.data = self.unused.data.double()


class PlainBecomesBuffer(Mean):
    """Which has the name."""

    def extra(self) -> None:
        self.mean = None

    def update(self, hidden: Tensor) -> None:
        if self.mean is None:
            del self.mean
            self.register_buffer("mean", hidden.mean(0))

    def read(self) -> Tensor:
        return torch.zeros(8) if self.mean is None else self.mean


class BecomesTransient(Mean):
    """Registered anew."""

    def update(self, hidden: Tensor) -> None:
        self.register_buffer("mean", hidden.mean(0), persistent=not self.persistent)


class BecomesPersistent(BecomesTransient):
    """The other way round."""

    persistent = False


class NewLayer(Mean):
    """Of the same form: the optimizer goes on with the weights of the old one."""

    def update(self, hidden: Tensor) -> None:
        self.head = nn.Linear(8, 1)


class SwapsLayers(Mean):
    """Two that are alike."""

    def extra(self) -> None:
        super().extra()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.is_swapped = False

    def update(self, hidden: Tensor) -> None:
        if not self.is_swapped:
            self.one, self.two, self.is_swapped = self.two, self.one, True


class OtherActivation(Mean):
    """A curriculum that the next attempt would begin anew."""

    def extra(self) -> None:
        super().extra()
        self.act = nn.Tanh()

    def update(self, hidden: Tensor) -> None:
        self.act = nn.Softsign()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NewLayer, "head.bias is another one than at first, which the optimizer does not train"),
        (SwapsLayers, "one.bias is another one than at first"),
        (OtherActivation, "act is of another class"),
        (TurnsWeight, "unused has another layout in memory"),
        (WidensWeight, "unused has another dtype"),
        (PlainBecomesBuffer, "mean was a plain attribute"),
        (BecomesTransient, "mean is persistent or not, unlike at first"),
        (BecomesPersistent, "mean is persistent or not, unlike at first"),
    ],
)
def test_another_form_is_refused_at_the_first_save(
    kind: type[Own], words: str, tmp_path: Path
) -> None:
    """And not by the first attempt after a kill, or never."""
    with pytest.raises(ModelError, match=f"training has changed it: .*{words}"):
        trainer_of(kind, tmp_path).train(1)
    assert not (tmp_path / "model_resume.pt").exists()
