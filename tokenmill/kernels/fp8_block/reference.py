"""FP8 block de-quantisation and quantisation, written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels.fp8_block.layout import BLOCK, scale_shape
from tokenmill.kernels.kv_quant.reference import FP8_MAX, power_of_two_at_least


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    rows, columns = codes.shape
    assert tuple(scales.shape) == scale_shape((rows, columns)), f"{tuple(codes.shape)} with {tuple(scales.shape)}"
    spread = scales.float().repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return codes.float() * spread


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] float32 -> codes [N, K] float8_e4m3fn, scales float8_e8m0fnu, each the least power of two that fits."""
    rows, columns = weight.shape
    grid_rows, grid_columns = scale_shape((rows, columns))
    padded = F.pad(weight, (0, grid_columns * BLOCK - columns, 0, grid_rows * BLOCK - rows))
    blocks = padded.view(grid_rows, BLOCK, grid_columns, BLOCK)
    scales = power_of_two_at_least(blocks.abs().amax((1, 3)).clamp(min=1e-30) / FP8_MAX)
    codes = (blocks / scales[:, None, :, None]).view(padded.shape)[:rows, :columns].to(torch.float8_e4m3fn)
    return codes, scales.to(torch.float8_e8m0fnu)
