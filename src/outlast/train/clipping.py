"""Gradient clipping over all trained parameters, heads included; no wait for the device."""

from typing import Any

import torch
from torch import Tensor

from outlast.sections import TrainingSection

WINDOW = 100
QUANTILE_FACTOR = 2.0


class Clipping:
    """Scales gradients down to a norm: a fixed one, or twice the median of the recent ones.

    The quantile limit starts when ``WINDOW`` finite norms are known. A norm that is not finite is
    neither stored nor used: what it means is the loss scaler's or the loss check's to say.
    """

    def __init__(self, section: TrainingSection, device: torch.device) -> None:
        """Keep the settings; no norm seen yet."""
        self._fixed, self._quantile = section.max_grad_norm, section.quantile_grad_clip
        self._norms = torch.zeros(WINDOW, dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def clip(self, gradients: list[Tensor]) -> None:
        """Scale flat gradients in place."""
        if not (self._fixed or self._quantile):
            return
        norm = torch.stack([flat.abs().double().square().sum() for flat in gradients]).sum().sqrt()
        limit = torch.full_like(norm, self._fixed or torch.inf)
        if self._quantile:
            limit = torch.minimum(limit, self._quantile_limit())
            self._remember(norm)
        factor = torch.where(norm.isfinite() & (norm > limit), limit / norm, 1.0)
        for flat in gradients:
            flat.mul_(factor.to(flat.dtype))

    def _quantile_limit(self) -> Tensor:
        middle = self._norms.sort().values[WINDOW // 2 - 1 : WINDOW // 2 + 1].mean()
        return torch.where(self._count >= WINDOW, QUANTILE_FACTOR * middle, torch.inf)

    def _remember(self, norm: Tensor) -> None:
        """Put a finite norm in the place of the oldest."""
        slot = (self._count % WINDOW).reshape(1)
        is_finite = norm.isfinite()
        value = torch.where(is_finite, norm, self._norms[slot][0])
        self._norms.index_copy_(0, slot, value.reshape(1))
        self._count += is_finite

    def state_dict(self) -> dict[str, Any]:
        """Return the recent norms, for the state file."""
        return {"norms": self._norms, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._norms.copy_(state["norms"])
        self._count.copy_(state["count"])
