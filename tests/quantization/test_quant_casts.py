"""MXFP4 to NVFP4 and to FP8 without a changed value, or a refusal."""

import pytest
import torch

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.quantized.casts import mxfp4_to_fp8_block, mxfp4_to_nvfp4, top_exponent
from tokenmill.kernels.quantized.packed import QuantizedTensor
from tokenmill.kernels.quantized.rounding import quantize


def mxfp4_of(exponents):
    """[rows, blocks] of exponents, every code in each block."""
    codes = torch.arange(256, dtype=torch.uint8)[:16].repeat(exponents.numel(), 1).view(exponents.shape[0], -1)
    return QuantizedTensor("mxfp4", codes, (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu))


@pytest.mark.parametrize("top", [-100, -8, 0, 40])
def test_to_nvfp4_over_the_whole_range_of_e4m3(top):
    """17 octaves: from 2^8 down to E4M3's least subnormal."""
    source = mxfp4_of((top - torch.arange(18)).view(3, 6))
    cast = mxfp4_to_nvfp4(source, "w")
    assert torch.equal(cast.codes, source.codes)
    assert torch.equal(cast.dequantize(), source.dequantize())
    with pytest.raises(CheckpointError, match=r"experts\.7\.w1: scales from"):
        mxfp4_to_nvfp4(mxfp4_of((top - torch.arange(19)).view(1, 19)), "experts.7.w1")


def test_shared_tensor_scale():
    a, b = quantize(torch.randn(32, 64), "mxfp4"), quantize(torch.randn(32, 64) * 8, "mxfp4")
    top = max(top_exponent(a), top_exponent(b))
    casts = [mxfp4_to_nvfp4(w, "w", top) for w in (a, b)]
    assert casts[0].tensor_scale == casts[1].tensor_scale
    assert torch.equal(casts[0].dequantize(), a.dequantize()) and torch.equal(casts[1].dequantize(), b.dequantize())


def test_blocks_of_zeros_fit_anywhere():
    weight = torch.randn(4, 64)
    weight[1, 32:] = 0
    source = quantize(weight, "mxfp4")
    assert torch.equal(mxfp4_to_nvfp4(source, "w").dequantize(), source.dequantize())
    assert torch.equal(mxfp4_to_fp8_block(source, "w").dequantize(), source.dequantize())


@pytest.mark.parametrize("shape", [(256, 256), (130, 160)])
def test_to_fp8_blocks(shape):
    source = quantize(torch.randn(*shape, generator=torch.Generator().manual_seed(3)) * 0.02, "mxfp4")
    cast = mxfp4_to_fp8_block(source, "w")
    assert cast.codes.dtype is torch.float8_e4m3fn and torch.equal(cast.dequantize(), source.dequantize())


def test_to_fp8_over_too_many_octaves_is_refused():
    with pytest.raises(CheckpointError, match=r"layers\.0\.w2: the scales within a block"):
        mxfp4_to_fp8_block(mxfp4_of(torch.tensor([[0, -16]])), "layers.0.w2")
