"""Block-diagonal linear layer: every group of input channels has its own small weight (V4's output projection)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class GroupedLinear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [T, G, K], weight [G, R, K] -> [T, G, R] in the dtype of x; group g meets only weight[g]."""
        ...
