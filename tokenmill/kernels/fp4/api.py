"""FP4 (e2m1): codes 0, .5, 1, 1.5, 2, 3, 4, 6 with bit 3 the sign, two per byte, the EVEN column in the LOW nibble.

With one e8m0 scale per 32 columns this is MXFP4, the format of V4's routed experts.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

#: Input columns that share a scale in expert weights.
GROUP = 32


class DequantizeFP4(Protocol):
    def __call__(self, packed: Tensor, scales: Tensor) -> Tensor:
        """packed [N, K/2] int8 or uint8, scales [N, ceil(K/32)] e8m0 -> [N, K] float32, exact."""
        ...
