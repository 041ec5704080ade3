"""Main losses, as float32 sums over rows: who divides, and by what, is the objective's business."""

from torch import Tensor
from torch.nn import functional


def bce(logits: Tensor, label: Tensor) -> Tensor:
    """Return the summed binary cross-entropy.

    Args:
        logits: Shape (rows,) or (rows, 1), any float dtype; positive means class 1.
        label: int64, shape (rows,), 0 or 1.

    Returns:
        A scalar in nats. No rows give 0.
    """
    flat = logits.reshape(-1)
    return functional.binary_cross_entropy_with_logits(flat, label.to(flat.dtype), reduction="sum")


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Return the summed softmax cross-entropy.

    Args:
        logits: Shape (rows, classes), any float dtype.
        label: int64 class index, shape (rows,).

    Returns:
        A scalar in nats. No rows give 0.
    """
    return functional.cross_entropy(logits, label, reduction="sum")
