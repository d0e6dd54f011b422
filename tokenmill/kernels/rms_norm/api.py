"""Root-mean-square norm: y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class RMSNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., C], weight [C] -> [..., C] in the dtype of x; statistics in float32. x is not changed."""
        ...
