import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch.nn import functional

from outlast.errors import ConfigError
from outlast.objective.losses import bce, cross_entropy
from outlast.objective.objective import build_objective, count_correct, decide
from outlast.sections import LossSection


def draw(rows: int, outputs: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 logits with a few large ones, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def test_bce_is_the_sum_over_rows() -> None:
    """Bce equals the formula, and scikit-learn's log loss times the number of rows."""
    logits, label = draw(50, 1, 2)
    chance = torch.sigmoid(logits[:, 0])
    formula = -(label * chance.log() + (1 - label) * (1 - chance).log()).sum()
    assert bce(logits, label) == pytest.approx(float(formula), rel=1e-12)
    reference = log_loss(label.numpy(), chance.numpy()) * 50
    assert float(bce(logits[:, 0], label)) == pytest.approx(reference, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_cross_entropy_is_the_sum_over_rows(classes: int) -> None:
    """cross_entropy equals minus log softmax at the label, summed, and scikit-learn's."""
    logits, label = draw(60, classes, classes)
    formula = -logits.log_softmax(1)[torch.arange(60), label].sum()
    assert cross_entropy(logits, label) == pytest.approx(float(formula), rel=1e-12)
    share = logits.softmax(1).numpy()
    reference = log_loss(label.numpy(), share, labels=np.arange(classes)) * 60
    assert float(cross_entropy(logits, label)) == pytest.approx(reference, rel=1e-12)


def test_large_logits_stay_finite() -> None:
    """A logit of 1000 on the wrong side costs 1000 nats, not infinity."""
    label = torch.tensor([0])
    assert float(bce(torch.tensor([[1000.0]]), label)) == pytest.approx(1000)
    assert float(cross_entropy(torch.tensor([[0.0, 1000.0]]), label)) == pytest.approx(1000)


def test_no_rows_cost_nothing() -> None:
    """Without rows a loss is exactly 0 and its gradient is no NaN (story 42)."""
    for loss, outputs in ((bce, 1), (cross_entropy, 4)):
        logits = torch.empty(0, outputs, requires_grad=True)
        value = loss(logits, torch.empty(0, dtype=torch.int64))
        value.backward()
        assert value == 0
        assert logits.grad is not None
        assert logits.grad.shape == (0, outputs)


def test_auto_takes_the_loss_that_fits() -> None:
    """`auto` is bce with one logit for two classes, cross_entropy with K logits for K classes."""
    two, three = (build_objective(LossSection(), list(names)) for names in ("ab", "abc"))
    assert (two.name, two.num_outputs) == ("bce", 1)
    assert (three.name, three.num_outputs) == ("cross_entropy", 3)


def test_an_explicit_loss_is_kept_or_refused() -> None:
    """cross_entropy for two classes is honoured; bce for three is refused by name (story 51)."""
    two = build_objective(LossSection(name="cross_entropy"), ["a", "b"])
    assert (two.name, two.num_outputs) == ("cross_entropy", 2)
    with pytest.raises(ConfigError, match=r"loss.name: bce .* have 3 \(a, b, c\); use cross_"):
        build_objective(LossSection(name="bce"), ["a", "b", "c"])


def test_half_precision_logits_are_summed_in_float32() -> None:
    """The objective computes float16 logits in float32, and a split's mean in float64."""
    logits, label = draw(4000, 3, 3)
    objective = build_objective(LossSection(), list("abc"))
    half = logits.half()
    exact = functional.cross_entropy(half.double(), label, reduction="sum")
    assert objective.loss_sum(half, label).dtype == torch.float32
    assert float(objective.loss_sum(half, label)) == pytest.approx(float(exact), rel=1e-5)
    assert objective.mean_loss(half, label) == pytest.approx(float(exact) / 4000, rel=1e-12)


def test_the_normaliser_is_the_number_of_rows() -> None:
    """Loss sums of a batch are divided by its rows, all of them."""
    objective = build_objective(LossSection(), ["a", "b"])
    assert objective.normaliser(np.array([0, 1, 1, 0, 1])) == 5.0


def test_decisions_are_made_on_raw_logits() -> None:
    """0 decides for class 0; two logits that a half-precision sigmoid would tie are told apart."""
    assert decide(torch.tensor([0.0, 1e-6, -1e-6])).tolist() == [0, 1, 0]
    assert decide(torch.tensor([[0.0], [1e-6]])).tolist() == [0, 1]
    close = torch.tensor([[20.0, 20.0 + 1e-5], [20.0 + 1e-5, 20.0]])
    assert torch.equal(close.half().softmax(1)[:, 0], close.half().softmax(1)[:, 1])
    assert decide(close).tolist() == [1, 0]
    assert int(count_correct(close, torch.tensor([1, 0]))) == 2
    assert int(count_correct(close, torch.tensor([1, 1]))) == 1
