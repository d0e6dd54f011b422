"""FP4 rounding, packing and de-quantisation, written out."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels.fp4.api import GROUP

FP4_MAX = 6.0
_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def to_codes(x: Tensor) -> Tensor:
    """float32 -> uint8 codes: nearest value, a tie goes to the even code, beyond 6 saturates.

    Each line is the boundary between two neighbours: `>` keeps a tie on the lower code, `>=` lifts it to the upper.
    """
    a = x.abs()
    code = (a > 0.25).to(torch.uint8)
    for boundary, is_tie_up in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += a >= boundary if is_tie_up else a > boundary
    return code + 8 * (x < 0).to(torch.uint8)


def from_codes(codes: Tensor) -> Tensor:
    return _VALUES[codes.long()]


def pack(codes: Tensor) -> Tensor:
    """[..., K] codes -> [..., K/2] uint8, even column in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """[..., K/2] int8 or uint8 -> [..., K] uint8 codes."""
    pairs = packed.view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)


def dequantize(packed: Tensor, scales: Tensor) -> Tensor:
    values = from_codes(unpack(packed))
    return values * scales.float().repeat_interleave(GROUP, -1)[..., : values.shape[-1]]
