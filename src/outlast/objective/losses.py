"""Main losses, in nats per row: who weights, sums and divides is the objective's business.

Pure functions, in the dtype of the logits; logits up to 1e4 keep loss and gradient finite. Bad
values (a label that is no class, a rate outside [0, 1), a negative gamma) are the caller's to
refuse before training: a check here would make a GPU wait for the host in each step.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


def bce(logits: Tensor, label: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the binary cross-entropy of each row.

    Args:
        logits: Shape (rows,) or (rows, 1), any float dtype; positive means class 1.
        label: int64, shape (rows,), 0 or 1.
        smoothing: s in [0, 1]: the target is y (1 - s) + s / 2.

    Returns:
        Nats, shape (rows,), dtype of ``logits``. No rows give an empty tensor.
    """
    flat = logits.reshape(-1)
    return functional.binary_cross_entropy_with_logits(
        flat, _binary_target(flat, label, smoothing), reduction="none"
    )


def focal(
    logits: Tensor,
    label: Tensor,
    gamma: float,
    neg_gamma: float | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the focal loss of each row: bce x (1 - p_t)^gamma, p_t the label's probability.

    Lin et al. 2017, "Focal loss for dense object detection"; an exponent per label from Ridnik
    et al. 2021, "Asymmetric loss for multi-label classification". A gamma of 0 gives bce to the
    bit, and equal exponents the symmetric loss to the bit.

    Args:
        logits: Shape (rows,) or (rows, 1), any float dtype; positive means class 1.
        label: int64, shape (rows,), 0 or 1.
        gamma: Exponent, at least 0.
        neg_gamma: Exponent of the rows of label 0, at least 0; None: as ``gamma``.
        smoothing: As in ``bce``. The factor stays that of the label as it is.

    Returns:
        Nats, shape (rows,), dtype of ``logits``. No rows give an empty tensor.
    """
    flat = logits.reshape(-1)
    negative = gamma if neg_gamma is None else neg_gamma
    exponent = torch.where(
        label == 1, torch.full_like(flat, gamma), torch.full_like(flat, negative)
    )
    # 1 - p_t = sigmoid(-z_t); as a power, its gradient at p_t = 1 is 0 x infinity for gamma < 1
    log_miss = functional.logsigmoid(torch.where(label == 1, -flat, flat))
    return bce(flat, label, smoothing) * torch.exp(exponent * log_miss)


def cross_entropy(logits: Tensor, label: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the softmax cross-entropy of each row.

    Args:
        logits: Shape (rows, classes), any float dtype.
        label: int64 class index, shape (rows,).
        smoothing: s in [0, 1]: the target is 1 - s at the label, plus s / classes everywhere.

    Returns:
        Nats, shape (rows,), dtype of ``logits``. No rows give an empty tensor.
    """
    return functional.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing)


def noise_corrected_bce(
    logits: Tensor, label: Tensor, rate: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of labels that were flipped with a known probability.

    Forward correction (Patrini et al. 2017, "Making deep neural networks robust to label noise"):
    the logits give p = P(true label = 1), and the loss is that of the observed label, with
    P(observed = 1) = (1 - rate) p + rate (1 - p). Rows of rate 0 give bce to the bit, their
    gradient too.

    Args:
        logits: Shape (rows,) or (rows, 1), any float dtype; positive means true class 1.
        label: Observed label, int64, shape (rows,), 0 or 1.
        rate: Probability in [0, 1) that a row's label was flipped, shape (rows,), any float dtype.
        smoothing: As in ``bce``, of the observed label.

    Returns:
        Nats, shape (rows,), dtype of ``logits``. No rows give an empty tensor.
    """
    flat = logits.reshape(-1)
    noisy = rate > 0
    # log 0 in the branch that is not taken would still make second derivatives NaN
    safe = torch.where(noisy, rate, 0.5)
    # logs before the cast: in the dtype of the logits a rate may round to 0 or 1
    log_flip, log_keep = safe.log().to(flat.dtype), torch.log1p(-safe).to(flat.dtype)
    log_one, log_zero = functional.logsigmoid(flat), functional.logsigmoid(-flat)
    observed_one = torch.logaddexp(log_keep + log_one, log_flip + log_zero)
    observed_zero = torch.logaddexp(log_keep + log_zero, log_flip + log_one)
    target = _binary_target(flat, label, smoothing)
    corrected = -(target * observed_one + (1 - target) * observed_zero)
    return torch.where(noisy, corrected, bce(flat, label, smoothing))


def noise_corrected_ce(
    logits: Tensor, label: Tensor, rate: Tensor, sink: int, smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of labels that were lost to one class with known probabilities.

    Forward correction (Patrini et al. 2017, "Making deep neural networks robust to label noise"):
    the logits give p_i = P(true label = i), and the loss is that of the observed label, with
    P(observed = i) = p_i (1 - rate_i) and P(observed = sink) = p_sink + sum of rate_i p_i.

    Args:
        logits: Shape (rows, classes), any float dtype.
        label: Observed label, int64 class index, shape (rows,).
        rate: Probability in [0, 1) that a row of the class is observed as ``sink``; shape
            (classes,), any float dtype, device of ``logits``; 0 at ``sink``.
        sink: Index of the class that receives the noise.
        smoothing: As in ``cross_entropy``, of the observed label.

    Returns:
        Nats, shape (rows,), dtype of ``logits``. No rows give an empty tensor.
    """
    is_sink = torch.arange(len(rate), device=rate.device) == sink
    # log 0 is meant: a class without noise adds nothing to the sink, nor to its gradient
    log_lost = torch.where(is_sink, 1.0, rate).log().to(logits.dtype)
    log_keep = torch.log1p(-rate).to(logits.dtype)
    log_true = logits.log_softmax(dim=1)
    log_sink = torch.logsumexp(log_true + log_lost, dim=1, keepdim=True)
    log_observed = torch.where(is_sink, log_sink, log_true + log_keep)
    at_label = log_observed.gather(1, label.reshape(-1, 1)).squeeze(1)
    return -((1 - smoothing) * at_label + smoothing * log_observed.mean(dim=1))


def class_weights(kind: Literal["none", "auto"] | list[float], counts: list[int]) -> Tensor | None:
    """Return what the rows of each class are multiplied by, or None for no weights.

    Args:
        kind: ``auto``: two classes get (1, negatives / positives), more get
            sqrt(rows / (classes x rows of the class)). A list is taken as it is.
        counts: Rows of each class in the training split. Under ``auto`` an absent class gets 1;
            of two classes the other does too: there is nothing to balance it with.

    Returns:
        float32, shape (classes,), on the CPU.
    """
    if kind == "none":
        return None
    if kind != "auto":
        assert len(kind) == len(counts), "one weight per class"
        weights = kind
    elif len(counts) == 2:
        negatives, positives = counts
        weights = [1.0, negatives / positives if negatives and positives else 1.0]
    else:
        share = sum(counts) / len(counts)
        weights = [(share / count) ** 0.5 if count else 1.0 for count in counts]
    return torch.tensor(weights, dtype=torch.float32)


def _binary_target(flat: Tensor, label: Tensor, smoothing: float) -> Tensor:
    return label.to(flat.dtype) * (1 - smoothing) + smoothing / 2
