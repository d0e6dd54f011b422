"""Casts between formats that change no value, refused where one would: MXFP4 to NVFP4 and to FP8 in 128x128 blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.quantized.packed import QuantizedTensor

_BIAS = 127
_E4M3_TOP_EXPONENT = 8  # 2^8 is E4M3's largest power of two
_E4M3_LEAST_EXPONENT = -9
_UNUSED = -1000  # exponent of a block that holds only zeros: it fits anywhere


def mxfp4_to_nvfp4(weight: QuantizedTensor, name: str, largest_exponent: int | None = None) -> QuantizedTensor:
    """The same codes; each scale twice, as E4M3 beside a power of two for the tensor.

    largest_exponent   where tensors share it (w1 and w3 of an expert): see `top_exponent`
    """
    exponents = _exponents(weight)
    top = top_exponent(weight) if largest_exponent is None else largest_exponent
    whole = top - _E4M3_TOP_EXPONENT
    relative = exponents - whole
    lost = (relative < _E4M3_LEAST_EXPONENT) & (exponents != _UNUSED)
    if bool(lost.any()) or not -126 <= whole <= 127:
        raise CheckpointError(
            f"{name}: scales from 2^{int(exponents[exponents != _UNUSED].min())} to 2^{top} do not fit NVFP4's E4M3 "
            "scales, so a cast would change values: de-quantise it and quantise anew"
        )
    scale = _power_of_two(relative.clamp(min=_E4M3_LEAST_EXPONENT)).to(torch.float8_e4m3fn)
    return QuantizedTensor("nvfp4", weight.codes, _twice(scale), torch.tensor(2.0**whole))


def top_exponent(weight: QuantizedTensor) -> int:
    """Exponent of the largest scale that meets a value other than zero; 0 for a tensor of zeros."""
    top = int(_exponents(weight).max())
    return 0 if top == _UNUSED else top


def mxfp4_to_fp8_block(weight: QuantizedTensor, name: str, block: int = 128) -> QuantizedTensor:
    """E4M3 with a power of two per block."""
    values = weight.dequantize()
    rows, columns = values.shape
    exponents = _exponents(weight).repeat_interleave(32, 1)
    padded = F.pad(exponents, (0, -columns % block, 0, -rows % block), value=_UNUSED)
    tops = padded.unflatten(1, (-1, block)).unflatten(0, (-1, block)).amax((1, 3))
    tops = torch.where(tops == _UNUSED, 0, tops)
    scale = _power_of_two((tops - 6).clamp(-126, 127))
    spread = scale.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
    cast = QuantizedTensor("fp8_block", (values / spread).to(torch.float8_e4m3fn), scale, block=block)
    if not torch.equal(cast.dequantize(), values):
        raise CheckpointError(
            f"{name}: the scales within a block of {block} lie too far apart for FP8, so a cast would change values: "
            "de-quantise it and quantise anew"
        )
    return cast


def _exponents(weight: QuantizedTensor) -> Tensor:
    assert weight.scheme == "mxfp4", f"{weight.scheme} is not MXFP4"
    exponents = weight.scale.view(torch.uint8).int() - _BIAS
    is_zero = (fp4.unpack(weight.codes).unflatten(1, (-1, 32)) & 7).amax(-1) == 0
    return torch.where(is_zero, _UNUSED, exponents)


def _power_of_two(exponents: Tensor) -> Tensor:
    """-126 .. 127, exact (exp2 of float32 need not be)."""
    return ((exponents.int() + _BIAS) << 23).view(torch.float32)


def _twice(scale: Tensor) -> Tensor:
    return scale.view(torch.uint8).repeat_interleave(2, 1).view(torch.float8_e4m3fn)
