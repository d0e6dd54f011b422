"""Weights in the layouts that the C kernels read (gemm.c): bf16, int8 per column, int4 in groups of 32 inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_TILE = 16
_COLUMNS = 2 * _TILE  # kernels take tiles in pairs
_GROUP = 32


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """
    format         bf16 | int8 | int4
    data           packed values, see gemm.c
    scale, aux     int8: float32 [N], None; int4: half scales and minima [N/16, K/32, 16]
    columns, inputs   padded N and K
    """

    format: str
    data: Tensor
    scale: Tensor | None
    aux: Tensor | None
    columns: int
    inputs: int

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in (self.data, self.scale, self.aux) if t is not None)


def pack(weight: Tensor, format: str) -> PackedWeight:
    """weight [N, K] of any float dtype -> packed; padded columns and inputs are zero."""
    padded = F.pad(weight, (0, -weight.shape[1] % _GROUP, 0, -weight.shape[0] % _COLUMNS))
    return {"bf16": _pack_bf16, "int8": _pack_int8, "int4": _pack_int4}[format](padded)


def _pack_bf16(weight: Tensor) -> PackedWeight:
    n, k = weight.shape
    data = weight.bfloat16().view(n // _TILE, _TILE, k // 2, 2).transpose(1, 2).contiguous()
    return PackedWeight("bf16", data, None, None, n, k)


def _pack_int8(weight: Tensor) -> PackedWeight:
    """Symmetric, one scale per output column: w = scale * q, |q| <= 127, rounded to nearest even."""
    n, k = weight.shape
    weight = weight.float()
    scale = weight.abs().amax(1) / 127
    q = torch.round(weight / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).to(torch.int8)
    unsigned = (q.to(torch.int16) + 128).to(torch.uint8)
    data = unsigned.view(n // _TILE, _TILE, k // 4, 4).transpose(1, 2).contiguous()
    return PackedWeight("int8", data, scale, None, n, k)


def _pack_int4(weight: Tensor) -> PackedWeight:
    """Asymmetric in groups of 32 inputs: w = scale * q + minimum, q in 0..15; both in half precision."""
    n, k = weight.shape
    groups = weight.float().view(n, k // _GROUP, _GROUP)
    minimum = groups.amin(2).half()
    scale = ((groups.amax(2) - minimum.float()) / 15).half()
    divisor = scale.float().clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    q = torch.round((groups - minimum.float()[..., None]) / divisor).clamp(0, 15).to(torch.uint8)
    nibbles = q.view(n // _TILE, _TILE, k // 8, 2, 4)
    data = (nibbles[:, :, :, 0] | (nibbles[:, :, :, 1] << 4)).transpose(1, 2).contiguous()
    return PackedWeight("int4", data, _by_tile(scale), _by_tile(minimum), n, k)


def _by_tile(values: Tensor) -> Tensor:
    """[N, groups] -> [N/16, groups, 16]"""
    return values.view(values.shape[0] // _TILE, _TILE, -1).transpose(1, 2).contiguous()
