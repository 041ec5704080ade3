from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import Tensor
from torch.nn import functional

from outlast.objective.losses import (
    bce,
    cross_entropy,
    focal,
    noise_corrected_bce,
    noise_corrected_ce,
)

Loss = Callable[[Tensor, Tensor], Tensor]


def rates(rows: int) -> Tensor:
    """A rate per row, in float64; those of rate 0 among them."""
    return torch.tensor([0.0, 0.3, 0.05, 0.9, 0.0]).double().repeat(rows // 5 + 1)[:rows]


def losses(smoothing: float) -> dict[str, tuple[Loss, int]]:
    """Every loss as a function of logits and label, and how many logits it takes per row."""
    lost = torch.tensor([0.3, 0.0, 0.0, 0.8], dtype=torch.float64)
    return {
        "bce": (lambda z, y: bce(z, y, smoothing), 1),
        "focal": (lambda z, y: focal(z, y, 2.0, 0.5, smoothing), 1),
        "cross_entropy": (lambda z, y: cross_entropy(z, y, smoothing), 4),
        "noise_corrected_bce": (
            lambda z, y: noise_corrected_bce(z, y, rates(len(z)), smoothing),
            1,
        ),
        "noise_corrected_ce": (lambda z, y: noise_corrected_ce(z, y, lost, 1, smoothing), 4),
    }


every_loss = pytest.mark.parametrize("name", list(losses(0)))
every_smoothing = pytest.mark.parametrize("smoothing", [0.0, 0.1])


def draw(rows: int, outputs: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float64 logits with a few large ones, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def slope(loss: Loss, logits: Tensor, label: Tensor) -> Tensor:
    """Gradient of the summed loss, of the shape of the logits."""
    leaf = logits.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf, label).sum(), leaf)
    return gradient


def assert_same_bits(first: Loss, second: Loss, logits: Tensor, label: Tensor) -> None:
    """Loss and gradient are equal, not close."""
    assert torch.equal(first(logits, label), second(logits, label))
    assert torch.equal(slope(first, logits, label), slope(second, logits, label))


def test_bce_of_each_row() -> None:
    """Bce is the formula row by row, and its mean is scikit-learn's log loss."""
    logits, label = draw(50, 1, 2)
    chance = torch.sigmoid(logits[:, 0])
    formula = -(label * chance.log() + (1 - label) * (1 - chance).log())
    torch.testing.assert_close(bce(logits, label), formula, rtol=1e-10, atol=1e-12)
    reference = log_loss(label.numpy(), chance.numpy())
    assert float(bce(logits[:, 0], label).mean()) == pytest.approx(reference, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_cross_entropy_of_each_row(classes: int) -> None:
    """cross_entropy is minus log softmax at the label, and its mean is scikit-learn's log loss."""
    logits, label = draw(60, classes, classes)
    formula = -logits.log_softmax(1)[torch.arange(60), label]
    torch.testing.assert_close(cross_entropy(logits, label), formula, rtol=1e-12, atol=1e-12)
    share = logits.softmax(1).numpy()
    reference = log_loss(label.numpy(), share, labels=np.arange(classes))
    assert float(cross_entropy(logits, label).mean()) == pytest.approx(reference, rel=1e-12)


def test_smoothing_mixes_in_the_loss_of_all_labels() -> None:
    """Smoothing s is 1 - s times the plain loss plus s times the mean loss over all labels."""
    rate = rates(40)
    lost = torch.tensor([0.3, 0.0, 0.6], dtype=torch.float64)
    plain_and_smooth: list[tuple[Loss, Loss, int]] = [
        (bce, lambda z, y: bce(z, y, 0.2), 2),
        (cross_entropy, lambda z, y: cross_entropy(z, y, 0.2), 3),
        (
            lambda z, y: noise_corrected_bce(z, y, rate),
            lambda z, y: noise_corrected_bce(z, y, rate, 0.2),
            2,
        ),
        (
            lambda z, y: noise_corrected_ce(z, y, lost, 1),
            lambda z, y: noise_corrected_ce(z, y, lost, 1, 0.2),
            3,
        ),
    ]
    for plain, smooth, classes in plain_and_smooth:
        logits, label = draw(40, 1 if classes == 2 else classes, classes)
        every = [plain(logits, torch.full_like(label, index)) for index in range(classes)]
        expected = 0.8 * plain(logits, label) + 0.2 * torch.stack(every).mean(0)
        torch.testing.assert_close(smooth(logits, label), expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_smooths_as_torch() -> None:
    """The smoothed target is that of torch's own label_smoothing."""
    logits, label = draw(40, 5, 5)
    reference = torch.nn.CrossEntropyLoss(label_smoothing=0.3)(logits, label)
    assert float(cross_entropy(logits, label, 0.3).mean()) == pytest.approx(float(reference))


@pytest.mark.parametrize(("gamma", "neg_gamma"), [(2.0, None), (0.5, 4.0), (0.3, 0.0)])
def test_focal_is_its_formula(gamma: float, neg_gamma: float | None) -> None:
    """Focal is -(1 - p_t)^gamma log p_t (Lin et al. 2017), with the label's own exponent."""
    logits, label = draw(50, 1, 2)
    chance = torch.sigmoid(logits[:, 0])
    right = torch.where(label == 1, chance, 1 - chance)
    exponent = [gamma if y == 1 or neg_gamma is None else neg_gamma for y in label.tolist()]
    formula = -((1 - right) ** torch.tensor(exponent, dtype=torch.float64)) * right.log()
    ours = focal(logits, label, gamma, neg_gamma)
    torch.testing.assert_close(ours, formula, rtol=1e-10, atol=1e-14)


def test_focal_smooths_the_target_and_not_the_factor() -> None:
    """Smoothed focal is smoothed bce times the factor of the label as it is."""
    logits, label = draw(50, 1, 2)
    factor = focal(logits, label, 2.0) / bce(logits, label)
    expected = factor * bce(logits, label, 0.2)
    torch.testing.assert_close(focal(logits, label, 2.0, smoothing=0.2), expected)


@every_smoothing
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_focal_without_exponent_is_bce_to_the_bit(dtype: torch.dtype, smoothing: float) -> None:
    """A gamma of 0 changes no bit of bce, nor of its gradient, far from 0 too."""
    logits, label = draw(301, 1, 2)
    logits = torch.cat([logits, 1e4 * logits[:50].sign()]).to(dtype)
    label = torch.cat([label, label[:50]])
    assert_same_bits(
        lambda z, y: focal(z, y, 0.0, smoothing=smoothing),
        lambda z, y: bce(z, y, smoothing),
        logits,
        label,
    )


def test_equal_exponents_are_symmetric_focal_to_the_bit() -> None:
    """A neg_gamma equal to gamma gives the bits of None; another one changes label 0 only."""
    logits, label = draw(301, 1, 2)
    for gamma in (0.0, 0.3, 1.0, 2.0):
        assert_same_bits(
            lambda z, y, g=gamma: focal(z, y, g, g),
            lambda z, y, g=gamma: focal(z, y, g),
            logits.float(),
            label,
        )
    same = focal(logits, label, 2.0, 3.0) == focal(logits, label, 2.0)
    assert torch.equal(same, label == 1)


@every_loss
@every_smoothing
def test_gradients_are_the_derivatives(name: str, smoothing: float) -> None:
    """Autograd agrees with finite differences for every loss, second derivatives too."""
    loss, outputs = losses(smoothing)[name]
    logits, label = draw(10, outputs, max(outputs, 2))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, label), (logits,))
    assert torch.autograd.gradgradcheck(lambda z: loss(z, label), (logits,))


@every_loss
@every_smoothing
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_extreme_logits_stay_finite(name: str, smoothing: float, dtype: torch.dtype) -> None:
    """Logits of 1e4 on either side give a finite loss of the logits' dtype, and gradient."""
    loss, outputs = losses(smoothing)[name]
    size = torch.tensor([0.0, 1.0, 30.0, 100.0, 1e4])
    side = torch.cat([size, -size])
    # every row at every rate of `rates` and at every label
    logits = torch.cartesian_prod(*[side] * (2 if outputs > 1 else 1)).reshape(-1, min(outputs, 2))
    logits = torch.cat([logits, -logits], dim=1)[:, :outputs].repeat_interleave(5, dim=0)
    for index in range(max(outputs, 2)):
        label = torch.full((len(logits),), index)
        value = loss(logits.to(dtype), label)
        assert value.dtype == dtype
        assert value.shape == (len(logits),)
        assert bool(value.isfinite().all())
        gradient = slope(loss, logits.to(dtype), label)
        assert bool(gradient.isfinite().all())


def test_a_wrong_large_logit_costs_its_size() -> None:
    """A logit of 1e4 on the wrong side costs 1e4 nats; a known noise caps it at -log rate."""
    label = torch.tensor([0])
    far, pair = torch.tensor([[1e4]]), torch.tensor([[0.0, 1e4]])
    assert float(bce(far, label)) == 1e4
    assert float(focal(far, label, 2.0)) == 1e4
    assert float(cross_entropy(pair, label)) == 1e4
    rate = torch.tensor([0.3])
    assert float(noise_corrected_bce(far, label, rate)) == pytest.approx(-np.log(0.3), rel=1e-6)
    lost = torch.tensor([0.0, 0.3])
    assert float(noise_corrected_ce(pair, label, lost, 0)) == pytest.approx(-np.log(0.3), rel=1e-6)


@every_loss
@every_smoothing
def test_no_rows_cost_nothing(name: str, smoothing: float) -> None:
    """Without rows a loss is empty, its sum exactly 0 and its gradient no NaN (story 42)."""
    loss, outputs = losses(smoothing)[name]
    logits = torch.empty(0, outputs, requires_grad=True)
    value = loss(logits, torch.empty(0, dtype=torch.int64))
    value.sum().backward()
    assert value.shape == (0,)
    assert value.sum() == 0
    assert logits.grad is not None
    assert logits.grad.shape == (0, outputs)


def test_a_row_does_not_see_the_others() -> None:
    """What a row costs is the same alone and in a batch, and inputs are left as they were."""
    for name, (loss, outputs) in losses(0.1).items():
        logits, label = draw(10, outputs, max(outputs, 2))
        before = logits.clone()
        value = loss(logits, label)
        assert torch.equal(logits, before), name
        # the rates of every fifth row are alike, so that rows 5-9 stand where 0-4 stood
        torch.testing.assert_close(value[5:], loss(logits[5:], label[5:]), rtol=1e-12, atol=0)
        assert torch.equal(functional.relu(-value), torch.zeros(10).double()), name
