"""E4M3 weights with one power-of-two scale per 128x128 block: how checkpoints store V4's linear layers."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class DequantizeFP8(Protocol):
    def __call__(self, codes: Tensor, scales: Tensor) -> Tensor:
        """codes [N, K] float8_e4m3fn, scales [ceil(N/128), ceil(K/128)] e8m0 or float32 -> [N, K] float32, exact."""
        ...
