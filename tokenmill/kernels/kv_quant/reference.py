"""Encoding and decoding of cached rows, written out. Everything is elementwise or a maximum, hence exact per row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.kv_quant.layout import RowLayout

FP8_MAX = 448.0
_E8M0_BIAS = 127


def storage_dtype(layout: RowLayout) -> torch.dtype:
    return torch.uint8 if layout.is_packed else torch.float32 if layout.dtype == "fp32" else torch.bfloat16


def storage_width(layout: RowLayout) -> int:
    """Elements of storage_dtype per row."""
    return layout.row_bytes if layout.is_packed else layout.width


def encode(rows: Tensor, layout: RowLayout) -> Tensor:
    if not layout.is_packed:
        return rows.to(storage_dtype(layout))
    rows = rows.bfloat16().float()  # the released model holds these rows in bf16 before it quantises them
    quantised, plain = rows.split([layout.num_quantised, layout.num_plain], dim=-1)
    scales = _scales(quantised, layout)
    parts = [
        _codes(quantised / _spread(scales, layout), layout),
        plain.bfloat16().view(torch.uint8),
        _scale_bytes(scales, layout),
    ]
    packed = torch.cat(parts, dim=-1)
    return F.pad(packed, (0, layout.row_bytes - packed.shape[-1]))


def decode(stored: Tensor, layout: RowLayout) -> Tensor:
    if not layout.is_packed:
        return stored.float()
    code_end = layout.code_bytes
    plain_end = code_end + 2 * layout.num_plain
    scale_end = plain_end + layout.num_scales * layout.bytes_per_scale
    values = _values(stored[..., :code_end], layout)
    plain = stored[..., code_end:plain_end].contiguous().view(torch.bfloat16).float()
    scales = _read_scales(stored[..., plain_end:scale_end], layout)
    return torch.cat((values * _spread(scales, layout), plain), dim=-1)


def fake_quantise(rows: Tensor, layout: RowLayout) -> Tensor:
    """What a row becomes by being stored and read; for the query side of a low-precision dot product."""
    return decode(encode(rows, layout), layout)


def power_of_two_at_least(x: Tensor) -> Tensor:
    """2^ceil(log2 x) of positive float32, exact: taken from the exponent bits, not from a rounded logarithm."""
    mantissa, exponent = torch.frexp(x)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    return _power_of_two(exponent)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^e for -126 <= e <= 127, by writing the float's exponent field."""
    return ((exponent.int() + _E8M0_BIAS) << 23).view(torch.float32)


def _scales(quantised: Tensor, layout: RowLayout) -> Tensor:
    """[n, num_quantised] -> [n, num_scales]; the rules of DeepSeek's reference code (specification section 12)."""
    missing = layout.num_scales * layout.group - layout.num_quantised
    grouped = F.pad(quantised, (0, missing)).unflatten(-1, (layout.num_scales, layout.group))
    largest = grouped.abs().amax(-1)
    if layout.dtype == "fp4":
        return power_of_two_at_least(largest.clamp(min=fp4.FP4_MAX * 2.0**-126) / fp4.FP4_MAX)
    return power_of_two_at_least(largest.clamp(min=1e-4) / FP8_MAX)


def _spread(scales: Tensor, layout: RowLayout) -> Tensor:
    return scales.repeat_interleave(layout.group, -1)[..., : layout.num_quantised]


def _codes(scaled: Tensor, layout: RowLayout) -> Tensor:
    if layout.dtype == "fp4":
        return fp4.pack(fp4.to_codes(scaled))
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def _values(codes: Tensor, layout: RowLayout) -> Tensor:
    if layout.dtype == "fp4":
        return fp4.from_codes(fp4.unpack(codes.contiguous()))
    return codes.contiguous().view(torch.float8_e4m3fn).float()


def _scale_bytes(scales: Tensor, layout: RowLayout) -> Tensor:
    if layout.bytes_per_scale == 4:
        return scales.contiguous().view(torch.uint8)
    return (torch.frexp(scales).exponent - 1 + _E8M0_BIAS).to(torch.uint8)


def _read_scales(stored: Tensor, layout: RowLayout) -> Tensor:
    if layout.bytes_per_scale == 4:
        return stored.contiguous().view(torch.float32)
    return _power_of_two(stored.int() - _E8M0_BIAS)
