from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outlast.objective.losses import bce, cross_entropy, noise_corrected_bce, noise_corrected_ce


def draw(rows: int, outputs: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Float64 logits with a few large ones, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def slope(value: Tensor, leaf: Tensor) -> Tensor:
    """Gradient of the summed loss."""
    return torch.autograd.grad(value.sum(), leaf, retain_graph=True)[0]


def test_corrected_bce_is_its_formula() -> None:
    """The loss is -log((1 - r) p + r (1 - p)) for label 1, and that of 1 - p for label 0."""
    logits, label = draw(60, 1, 2)
    rate = torch.linspace(0, 0.99, 60, dtype=torch.float64)
    chance = torch.sigmoid(logits[:, 0])
    observed = (1 - rate) * chance + rate * (1 - chance)
    formula = -torch.where(label == 1, observed, 1 - observed).log()
    for shaped in (logits, logits[:, 0]):
        torch.testing.assert_close(noise_corrected_bce(shaped, label, rate), formula)


def test_corrected_ce_is_its_formula() -> None:
    """The loss is -log of p_i (1 - r_i), and of p_sink plus what the others lose for the sink."""
    logits, _ = draw(50, 4, 4)
    rate = torch.tensor([0.3, 0.0, 0.05, 0.0], dtype=torch.float64)
    share = logits.softmax(1)
    sink = share[:, 3] + 0.3 * share[:, 0] + 0.05 * share[:, 2]
    expected = [0.7 * share[:, 0], share[:, 1], 0.95 * share[:, 2], sink]
    for index, observed in enumerate(expected):
        loss = noise_corrected_ce(logits, torch.full((50,), index), rate, 3)
        torch.testing.assert_close(loss, -observed.log(), rtol=1e-10, atol=1e-12)


def test_probabilities_of_the_observable_labels_sum_to_one() -> None:
    """exp(-loss) over all labels is 1 per row: noise moves probability and creates none."""
    logits, label = draw(50, 4, 4)
    ones = torch.ones(50, dtype=torch.float64)
    for sink, rate in enumerate(0.9 * (1 - torch.eye(4, dtype=torch.float64))):
        every = [
            noise_corrected_ce(logits, torch.full_like(label, index), rate, sink)
            for index in range(4)
        ]
        torch.testing.assert_close(torch.exp(-torch.stack(every)).sum(0), ones)
    rates = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    both = [noise_corrected_bce(logits[:, 0], torch.full_like(label, y), rates) for y in (0, 1)]
    torch.testing.assert_close(torch.exp(-torch.stack(both)).sum(0), ones)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rows_without_noise_are_bce_to_the_bit(dtype: torch.dtype, smoothing: float) -> None:
    """Rate 0 gives the bits of bce, loss and gradient, beside noisy rows too; those differ."""
    logits, label = draw(300, 1, 2)
    logits = torch.cat([logits, 1e4 * logits[:50].sign()]).to(dtype).requires_grad_()
    label = torch.cat([label, label[:50]])
    clean = torch.arange(350) % 3 > 0
    rate = torch.where(clean, 0.0, 0.3)
    plain = bce(logits, label, smoothing)
    for given, rows in ((torch.zeros(350), torch.ones(350, dtype=torch.bool)), (rate, clean)):
        corrected = noise_corrected_bce(logits, label, given, smoothing)
        assert torch.equal(corrected[rows], plain[rows])
        same = slope(corrected, logits)[rows] == slope(plain, logits)[rows]
        assert bool(same.all())
    assert not bool((corrected[~clean] == plain[~clean]).all())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_sink_that_receives_nothing_is_cross_entropy(smoothing: float) -> None:
    """With all rates 0 the corrected loss and its gradient are those of cross_entropy."""
    logits, label = draw(80, 5, 5)
    logits.requires_grad_()
    plain = cross_entropy(logits, label, smoothing)
    corrected = noise_corrected_ce(logits, label, torch.zeros(5), 2, smoothing)
    torch.testing.assert_close(corrected, plain, rtol=1e-12, atol=1e-12)
    gradients = slope(corrected, logits), slope(plain, logits)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_two_classes_with_a_sink_agree_with_the_other_classes_absent() -> None:
    """A class of probability 0 changes nothing, whatever its rate."""
    logits, label = draw(40, 2, 2)
    wide = torch.cat([logits, torch.full((40, 1), -1e4).double()], dim=1)
    two = noise_corrected_ce(logits, label, torch.tensor([0.4, 0.0]).double(), 1)
    three = noise_corrected_ce(wide, label, torch.tensor([0.4, 0.0, 0.7]).double(), 1)
    torch.testing.assert_close(three, two)


def test_rates_next_to_the_ends_survive_coarse_logits() -> None:
    """A rate that bfloat16 would round to 1 or 0 costs -log(1 - rate) or -log rate, no infinity."""
    rate = torch.tensor([1 - 1e-6, 1e-60, 1e-60], dtype=torch.float64)
    logits = torch.tensor([1e4, 1e4, -1e4], dtype=torch.bfloat16, requires_grad=True)
    loss = noise_corrected_bce(logits, torch.tensor([1, 0, 1]), rate)
    assert loss.tolist() == pytest.approx([13.8, 138.2, 138.2], rel=0.01)
    assert bool(slope(loss, logits).isfinite().all())


def fit(features: Tensor, outputs: int, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Weights, shape (features, outputs), that minimize the mean loss; full batch, float64."""
    weights = torch.zeros(features.shape[1], outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        mean = loss(features @ weights).mean()
        mean.backward()
        return mean

    optimizer.step(closure)
    return weights.detach()


def test_known_flips_are_undone() -> None:
    """Logistic regression on labels with known flips comes back to the fit of the clean ones.

    The rate goes with the sign of a feature, so that plain bce is pulled aside, not only shrunk.
    """
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(4000, 3, dtype=torch.float64, generator=generator)
    truth = torch.tensor([[1.5], [-1.0], [0.5]], dtype=torch.float64)
    chance = torch.rand(2, 4000, dtype=torch.float64, generator=generator)
    clean = (chance[0] < torch.sigmoid(features @ truth)[:, 0]).long()
    rate = torch.where(features[:, 0] > 0, 0.3, 0.1).double()
    observed = torch.where(chance[1] < rate, 1 - clean, clean)

    optimum = fit(features, 1, lambda z: bce(z, clean))
    plain = fit(features, 1, lambda z: bce(z, observed))
    corrected = fit(features, 1, lambda z: noise_corrected_bce(z, observed, rate))
    assert float((plain - optimum).norm()) > 0.7
    assert float((corrected - optimum).norm()) < 0.2


def test_a_known_sink_is_undone() -> None:
    """Softmax regression on labels lost to a sink comes back to the fit of the clean ones."""
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(4000, 3, dtype=torch.float64, generator=generator)
    features[:, 0] = 1
    truth = torch.tensor([[0.0, 0.5, 0.0], [1.5, -1.0, 0.0], [0.0, 1.0, -1.5]]).double()
    clean = torch.multinomial((features @ truth).softmax(1), 1, generator=generator)[:, 0]
    rate = torch.tensor([0.3, 0.5, 0.0], dtype=torch.float64)
    lost = torch.rand(4000, dtype=torch.float64, generator=generator) < rate[clean]
    observed = torch.where(lost, 2, clean)

    def centred(weights: Tensor) -> Tensor:
        """Of one representative: softmax ignores what all classes have in common."""
        return weights - weights.mean(dim=1, keepdim=True)

    optimum = centred(fit(features, 3, lambda z: cross_entropy(z, clean)))
    plain = centred(fit(features, 3, lambda z: cross_entropy(z, observed)))
    corrected = centred(fit(features, 3, lambda z: noise_corrected_ce(z, observed, rate, 2)))
    assert float((plain - optimum).norm()) > 0.7
    assert float((corrected - optimum).norm()) < 0.2
