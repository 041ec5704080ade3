import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from torch import Tensor

from outlast.objective.scores import auroc, probabilities, score

SEEDS = range(5)


def draw(rows: int, outputs: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits on a grid of quarters, so that many tie; every class is in the labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, outputs, generator=generator)
    label = torch.randint(classes, (rows,), generator=generator)
    label[:classes] = torch.arange(classes)
    return (logits * 4).round() / 4, label


def one_vs_rest(share: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Macro AUROC of scikit-learn over the classes that are present."""
    return float(np.mean([roc_auc_score(truth == k, share[:, k]) for k in np.unique(truth)]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", ["flat", "column", "two"])
def test_two_classes_equal_scikit_learn(shape: str, seed: int) -> None:
    """Accuracy, F1 and AUROC of class 1 are the reference's, from one logit or from two."""
    logits, label = draw(80, 2 if shape == "two" else 1, 2, seed)
    logits = logits.reshape(-1) if shape == "flat" else logits
    margin = (logits[:, 1] - logits[:, 0] if shape == "two" else logits.reshape(-1)).numpy()
    truth, found = label.numpy(), score(logits, label)
    assert len(np.unique(margin)) < 60, "ties are needed"
    assert found.accuracy == pytest.approx(accuracy_score(truth, margin > 0), abs=1e-12)
    assert found.f1 == pytest.approx(f1_score(truth, margin > 0), abs=1e-12)
    assert found.auc == pytest.approx(roc_auc_score(truth, margin), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("classes", [3, 4, 5, 6])
def test_several_classes_equal_scikit_learn(classes: int, seed: int) -> None:
    """Accuracy, macro F1 and macro one-vs-rest AUROC are the reference's."""
    logits, label = draw(100, classes, classes, seed)
    share, truth, found = probabilities(logits).numpy(), label.numpy(), score(logits, label)
    predicted = logits.numpy().argmax(1)
    assert found.accuracy == pytest.approx(accuracy_score(truth, predicted), abs=1e-12)
    assert found.f1 == pytest.approx(f1_score(truth, predicted, average="macro"), abs=1e-12)
    reference = roc_auc_score(truth, share, multi_class="ovr", average="macro")
    assert found.auc == pytest.approx(reference, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_absent_class_is_skipped(seed: int) -> None:
    """A class without rows is left out of the means: neither an error nor a 0 (story 34)."""
    logits, label = draw(70, 5, 5, seed)
    kept = label != 3
    logits, label = logits[kept], label[kept]
    truth, found = label.numpy(), score(logits, label)
    reference = f1_score(
        truth, logits.numpy().argmax(1), average="macro", labels=np.unique(truth), zero_division=0
    )
    assert found.f1 == pytest.approx(reference, abs=1e-12)
    assert found.auc == pytest.approx(one_vs_rest(probabilities(logits).numpy(), truth), abs=1e-12)


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_one_class_leaves_the_auroc_undefined(outputs: int) -> None:
    """With one class in the labels the AUROC is None, and the accuracy still a number."""
    logits, _ = draw(20, outputs, 2, 0)
    found = score(logits, torch.ones(20, dtype=torch.int64))
    assert found.auc is None
    assert 0 <= found.accuracy <= 1


def test_f1_without_any_positive_is_undefined() -> None:
    """Nothing predicted positive and nothing positive: F1 is None, not 0."""
    assert score(torch.full((5,), -1.0), torch.zeros(5, dtype=torch.int64)).f1 is None


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_nan_logits_leave_the_auroc_undefined(outputs: int) -> None:
    """One NaN among the logits makes the AUROC None: NaN has no rank (story 11)."""
    logits, label = draw(40, outputs, max(2, outputs), 0)
    logits[7] = torch.nan
    assert score(logits, label).auc is None


def test_saturated_probabilities_keep_their_order() -> None:
    """Logits that round to probability 1 in float64 are still ranked (story 33)."""
    logits = torch.tensor([50.0, 60.0, 70.0, 80.0])
    assert probabilities(logits)[:, 1].unique().numel() == 1
    assert score(logits, torch.tensor([0, 0, 1, 1])).auc == 1.0


def test_half_precision_logits_are_scored_in_float64() -> None:
    """Probabilities of float16 logits are those of the same numbers in float64."""
    logits, _ = draw(30, 3, 3, 0)
    found = probabilities(logits.half())
    assert found.dtype == torch.float64
    assert torch.equal(found, logits.half().double().softmax(1))


def test_auroc_of_a_large_split_needs_no_table_of_pairs() -> None:
    """200 000 rows with ties are scored to the last digits of the reference."""
    value = torch.randn(200_000, generator=torch.Generator().manual_seed(0)).round(decimals=2)
    actual = torch.arange(200_000) % 3 == 0
    reference = roc_auc_score(actual.numpy(), value.numpy())
    assert auroc(value, actual) == pytest.approx(reference, abs=1e-12)
