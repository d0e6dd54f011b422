"""Gated activation of an MLP: silu(gate) * up, from the fused projection."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class SiluMul(Protocol):
    def __call__(self, gate_up: Tensor, limit: float | None = None) -> Tensor:
        """gate_up [T, 2F], gate in the first half -> [T, F].

        limit: clamp before the activation, gate from above only, up from both sides (`swiglu_limit`).
        """
        ...
