"""Weights in the panels that the C kernels read (csrc/gemm.c has the layouts, csrc/pack.c writes them).

bf16; int8 with a scale per output column; int4 in groups of 32 inputs; NVFP4 and MXFP4 as checkpoints hold them.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.native.arena import ARENA
from tokenmill.kernels.native.library import FORMATS, Library, PackFp4Struct, PackStruct

_PANEL = 32  # output columns
_GROUP = 32  # inputs
_GROUP_BYTES = {"bf16": 2048, "int8": 1024, "int4": 576, "nvfp4": 576, "mxfp4": 576}  # of a panel's group
_E4M3_AS_HALF = 2.0**8  # what moving e4m3 bits into a half divides by (csrc/gemm.c)
_E2M1_STEP = 0.5  # the kernels count in halves


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """
    data      uint8, panels of 32 outputs
    scale     float32 [columns], or None where a format has none
    columns, inputs   padded N and K
    """

    format: str
    data: Tensor
    scale: Tensor | None
    columns: int
    inputs: int

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + (0 if self.scale is None else self.scale.nbytes)


def pack(library: Library, weight: Tensor, format: str) -> PackedWeight:
    """weight [N, K] of any float dtype -> bf16, int8 or int4; padded columns and inputs are zero."""
    n, k = weight.shape
    packed = _empty(format, n, k, torch.zeros(_padded(n)) if format == "int8" else None)
    source = (weight if weight.dtype == torch.bfloat16 else weight.float()).contiguous()
    job = PackStruct(
        FORMATS[format], source.dtype == torch.float32, n, k, packed.inputs, source.data_ptr(), packed.data.data_ptr(),
        None if packed.scale is None else packed.scale.data_ptr(),
    )  # fmt: skip
    library.pack(byref(job))
    return packed


def pack_fp4(library: Library, codes: Tensor, scales: Tensor, format: str, tensor_scale: float = 1.0) -> PackedWeight:
    """Without a change of value. K is a multiple of 32.

    codes         [N, K/2] uint8, E2M1, even inputs in the low nibbles
    scales        nvfp4: [N, K/16] E4M3, not negative; mxfp4: [N, K/32] E8M0; as dtype or as uint8
    tensor_scale  multiplies every value
    """
    n, k = codes.shape[0], 2 * codes.shape[1]
    assert k % _GROUP == 0, f"{k} inputs are not a multiple of {_GROUP}"
    step = _E2M1_STEP * (_E4M3_AS_HALF if format == "nvfp4" else 1.0)
    packed = _empty(format, n, k, torch.full((_padded(n),), tensor_scale * step))
    codes, scales = codes.view(torch.uint8).contiguous(), scales.view(torch.uint8).contiguous()
    job = PackFp4Struct(FORMATS[format], n, k, codes.data_ptr(), scales.data_ptr(), packed.data.data_ptr())
    library.pack_fp4(byref(job))
    return packed


def _empty(format: str, n: int, k: int, scale: Tensor | None) -> PackedWeight:
    columns, inputs = _padded(n), _padded(k)
    num_bytes = columns // _PANEL * (inputs // _GROUP) * _GROUP_BYTES[format]
    return PackedWeight(format, ARENA.take(num_bytes), scale, columns, inputs)


def _padded(n: int) -> int:
    return n + -n % _PANEL
