"""Quantised weights into the panels of the C kernels: plain ones by rounding, packed ones without a change of value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenmill.kernels.linear.api import check_weight
from tokenmill.kernels.native.library import Library
from tokenmill.kernels.native.linear import NativeLinear
from tokenmill.kernels.native.pack import PackedWeight, pack, pack_fp4
from tokenmill.kernels.quantized.packed import QuantizedTensor
from tokenmill.kernels.quantized.rounding import check_groups, quantize

_GROUP = 32  # inputs of a panel's group (csrc/gemm.c)
_ROUNDED_HERE = ("nvfp4", "mxfp4")  # int8 and int4 are rounded by csrc/pack.c


def make_linear(library: Library, format: str, weight: Tensor, bias: Tensor | None = None) -> NativeLinear:
    """A plain weight in `format` (kernels/native/pack)."""
    if format not in _ROUNDED_HERE:
        return NativeLinear(library, format, weight, bias)
    check_weight(weight, bias)
    check_groups(weight.shape, "mxfp4", "a layer's weight")  # the kernels want whole groups of 32 of nvfp4 as well
    return packed_linear(library, [quantize(weight, "nvfp4" if format == "nvfp4" else "mxfp4")], bias)


def packed_linear(library: Library, parts: Sequence[QuantizedTensor], bias: Tensor | None = None) -> NativeLinear:
    """Weights as a checkpoint holds them, one below the other: their own format where the kernels have it and all
    parts are in it, else bf16."""
    columns, inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
    scheme = parts[0].scheme
    is_one = all(part.scheme == scheme for part in parts) and inputs % _GROUP == 0
    if is_one and scheme in _ROUNDED_HERE:
        packed = _fp4(library, parts)
    elif is_one and scheme == "int8":
        packed = _int8(parts)
    else:
        packed = pack(library, torch.cat([part.dequantize().bfloat16() for part in parts]), "bf16")
    return NativeLinear.of_packed(library, packed, columns, inputs, bias)


def _fp4(library: Library, parts: Sequence[QuantizedTensor]) -> PackedWeight:
    codes = torch.cat([part.codes for part in parts])
    scales = torch.cat([part.scale.view(torch.uint8) for part in parts])
    packed = pack_fp4(library, codes, scales, parts[0].scheme)
    assert packed.scale is not None
    begin = 0
    for part in parts:  # tensor scales may differ from part to part: the panels have one per column
        if part.tensor_scale is not None:
            whole = part.tensor_scale.float()
            packed.scale[begin : begin + part.shape[0]] *= 1 / whole if part.divides else whole
        begin += part.shape[0]
    return packed


def _int8(parts: Sequence[QuantizedTensor]) -> PackedWeight:
    """[panels, groups, 8 quads, 2 tiles, 16, 4], stored as q + 128 (csrc/gemm.c)."""
    codes = torch.cat([part.codes for part in parts])
    rows, inputs = codes.shape
    columns = rows + -rows % _GROUP
    bytes_ = torch.full((columns, inputs), 128, dtype=torch.uint8)
    bytes_[:rows] = codes.view(torch.uint8) ^ 128
    data = bytes_.view(-1, 2, 16, inputs // _GROUP, 8, 4).permute(0, 3, 4, 1, 2, 5).contiguous().flatten()
    scale = torch.zeros(columns)
    scale[:rows] = torch.cat([part.scales().expand(part.shape[0], 1) for part in parts]).flatten()
    return PackedWeight("int8", data, scale, columns, inputs)
