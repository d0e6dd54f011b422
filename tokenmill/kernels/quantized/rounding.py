"""Numbers to codes: nearest, a tie to the even code, beyond the largest code that code; never a wrap.

A recipe picks the scales; what it minimises is the squared error of the weights. Not responsible for: which tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.quantized.packed import GROUPS, QuantizedTensor, Scheme

Recipe = Literal["max", "mse", "four_over_six"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
#: max: scales by the largest value. mse: the scale, of those nearby, with the least squared error. four_over_six: a
#: block's largest value meets 6 or 4 (between 4 and 6 the grid is coarse), whichever errs less ("Four Over Six", 2025).
POSSIBLE: dict[Scheme, tuple[Recipe, ...]] = {
    "nvfp4": ("max", "mse", "four_over_six"),
    "mxfp4": ("max", "mse"),
    "int8": ("max", "mse"),
    "int4": ("max", "mse"),
    "fp8_block": ("max",),
    "fp8": ("max",),
}

E4M3_MAX = 448.0
_NVFP4_TOP = fp4.FP4_MAX * E4M3_MAX
_LEAST_E4M3 = 1  # the code of 2^-9, its least value above zero
_TOP_E4M3 = 126  # the code of 448; 127 is NaN
_E8M0_BIAS = 127
_TINY = 2.0**-126  # least normal float32
_SHRINK = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # of an integer scale, tried by mse
_LEAST_HALF, _TOP_HALF = 2.0**-24, 65504.0  # int4 scales are kept as half precision


def check_finite(weight: Tensor, name: str) -> None:
    """CheckpointError with the tensor's name and the first place of a NaN or infinity."""
    wrong = ~torch.isfinite(weight)
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        raise CheckpointError(
            f"{name}{at} is {weight[tuple(at)].item()}: a weight must be finite to be quantised; "
            "the file is damaged or was converted wrongly, fetch the model again"
        )


def check_recipe(scheme: Scheme, recipe: str) -> None:
    if recipe not in POSSIBLE[scheme]:
        raise ConfigError(f"recipe {recipe} is not possible for {scheme}: choose {' or '.join(POSSIBLE[scheme])}")


def check_groups(shape: Sequence[int], scheme: Scheme, name: str) -> None:
    group = GROUPS[scheme]
    if group is not None and shape[1] % group:
        raise CheckpointError(
            f"{name} has {shape[1]} inputs, which groups of {group} ({scheme}) do not divide: leave it out with "
            "--exclude, or choose fp8, fp8_block or int8"
        )


def quantize(
    weight: Tensor,
    scheme: Scheme,
    recipe: Recipe = "max",
    *,
    name: str = "weight",
    largest: float | None = None,
    per_tensor: bool = False,
) -> QuantizedTensor:
    """weight [N, K] of any float dtype.

    name        of the tensor, for messages
    largest     largest size of a value where this is a part of a tensor, or where tensors share a scale (nvfp4, fp8
                per tensor)
    per_tensor  fp8 with one scale instead of one per row
    """
    check_recipe(scheme, recipe)
    check_groups(weight.shape, scheme, name)
    check_finite(weight, name)
    wide = weight.float()
    if scheme == "nvfp4":
        return _nvfp4(wide, recipe, _largest(wide, largest))
    if scheme == "mxfp4":
        return _mxfp4(wide, recipe)
    if scheme == "fp8_block":
        return _fp8_block(wide)
    if scheme == "fp8":
        return _fp8(wide, _largest(wide, largest) if per_tensor else None)
    return _integers(wide, scheme, recipe)


def _largest(weight: Tensor, given: float | None) -> float:
    return given if given is not None else float(weight.abs().max()) if weight.numel() else 0.0


# -- four bits --


def nvfp4_tensor_scale(largest: float) -> Tensor:
    """Such that the block scale of the largest value is E4M3's largest; 1 for a tensor of zeros."""
    return torch.tensor(max(largest / _NVFP4_TOP, _TINY) if largest else 1.0)


def _nvfp4(weight: Tensor, recipe: Recipe, largest: float) -> QuantizedTensor:
    blocks = weight.unflatten(1, (-1, 16))
    whole = nvfp4_tensor_scale(largest)
    tops = blocks.abs().amax(-1)
    base = _e4m3_code(tops / fp4.FP4_MAX / whole)
    if recipe == "mse":  # 13 neighbours: the block's largest value meets about 3 to 9
        tries = [(base + step).clamp(_LEAST_E4M3, _TOP_E4M3) for step in range(-4, 9)]
    elif recipe == "four_over_six":
        tries = [base, _e4m3_code(tops / 4.0 / whole)]
    else:
        tries = [base]
    scale, codes = _best(blocks, tries, lambda code: _from_e4m3_code(code) * whole)
    scales = scale.to(torch.uint8).view(torch.float8_e4m3fn)
    return QuantizedTensor("nvfp4", fp4.pack(codes.flatten(1)), scales, whole)


def _e4m3_code(x: Tensor) -> Tensor:
    """Positive values to the bits of E4M3, int32; what would round to zero becomes the least value above it."""
    bits = x.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8).int()
    return bits.clamp(min=_LEAST_E4M3)


def _from_e4m3_code(code: Tensor) -> Tensor:
    return code.to(torch.uint8).view(torch.float8_e4m3fn).float()


def _mxfp4(weight: Tensor, recipe: Recipe) -> QuantizedTensor:
    blocks = weight.unflatten(1, (-1, 32))
    base = _exponent_at_least(blocks.abs().amax(-1) / fp4.FP4_MAX) + _E8M0_BIAS
    steps = (-1, 0) if recipe == "mse" else (0,)
    tries = [(base + step).clamp(1, 254) for step in steps]
    scale, codes = _best(blocks, tries, _from_e8m0_code)
    scales = scale.to(torch.uint8).view(torch.float8_e8m0fnu)
    return QuantizedTensor("mxfp4", fp4.pack(codes.flatten(1)), scales)


def _from_e8m0_code(code: Tensor) -> Tensor:
    return code.to(torch.uint8).view(torch.float8_e8m0fnu).float()


def _exponent_at_least(x: Tensor) -> Tensor:
    """Least k with 2^k >= x, exact; of zero -126."""
    mantissa, exponent = torch.frexp(x.clamp(min=_TINY))
    return exponent - (mantissa == 0.5).int()


def _best(blocks: Tensor, tries: Sequence[Tensor], decode: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(scale code per block, E2M1 codes): of the scales tried the one whose codes err least; the first of equals."""
    best_scale, best_codes = tries[0], _e2m1(blocks, decode(tries[0]))
    if len(tries) == 1:
        return best_scale, best_codes
    unit = decode(best_scale)[..., None]  # squares of the values themselves could underflow
    least = _error(blocks, best_codes, decode(best_scale), unit)
    for scale in tries[1:]:
        step = decode(scale)
        codes = _e2m1(blocks, step)
        error = _error(blocks, codes, step, unit)
        is_better = error < least
        least = torch.where(is_better, error, least)
        best_scale = torch.where(is_better, scale, best_scale)
        best_codes = torch.where(is_better[..., None], codes, best_codes)
    return best_scale, best_codes


def _e2m1(blocks: Tensor, step: Tensor) -> Tensor:
    # A step may be subnormal, or zero after underflow: then the quotient saturates, and of zero it must stay zero.
    return fp4.to_codes(torch.nan_to_num(blocks / step[..., None], nan=0.0))


def _error(blocks: Tensor, codes: Tensor, step: Tensor, unit: Tensor) -> Tensor:
    return ((fp4.from_codes(codes) * step[..., None] - blocks) / unit).square().sum(-1)


# -- eight bits in floating point --


def to_e4m3(x: Tensor) -> Tensor:
    """float32 -> E4M3, nearest even, saturating (the plain cast makes NaN of what is too large)."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _step(largest: Tensor, top: float) -> Tensor:
    """Scale that brings `largest` to `top`; 1 where all is zero."""
    return torch.where(largest > 0, (largest / top).clamp(min=_TINY), torch.ones_like(largest))


def _fp8_block(weight: Tensor, block: int = 128) -> QuantizedTensor:
    rows, columns = weight.shape
    padded = F.pad(weight, (0, -columns % block, 0, -rows % block))
    blocks = padded.unflatten(1, (-1, block)).unflatten(0, (-1, block))  # [n, b, k, b]
    scale = _step(blocks.abs().amax((1, 3)), E4M3_MAX)
    codes = to_e4m3(blocks / scale[:, None, :, None]).view(padded.shape)[:rows, :columns].contiguous()
    return QuantizedTensor("fp8_block", codes, scale, block=block)


def _fp8(weight: Tensor, largest: float | None) -> QuantizedTensor:
    tops = weight.abs().amax(1, keepdim=True) if largest is None else torch.tensor([[largest]])
    scale = _step(tops, E4M3_MAX)
    return QuantizedTensor("fp8", to_e4m3(weight / scale), scale)


# -- integers: symmetric, a scale per row (int8) or per 32 inputs (int4) --


def _integers(weight: Tensor, scheme: Scheme, recipe: Recipe) -> QuantizedTensor:
    top, bottom = (127, -127) if scheme == "int8" else (7, -8)
    groups = weight.unflatten(1, (-1, GROUPS[scheme] or weight.shape[1]))
    full = _step(groups.abs().amax(-1), float(top))
    best, codes = _rounded(groups, full, bottom, top, scheme)
    least = ((codes * best[..., None] - groups) / full[..., None]).square().sum(-1)
    for share in _SHRINK if recipe == "mse" else ():
        scale, tried = _rounded(groups, full * share, bottom, top, scheme)
        error = ((tried * scale[..., None] - groups) / full[..., None]).square().sum(-1)
        is_better = error < least
        best, least = torch.where(is_better, scale, best), torch.where(is_better, error, least)
        codes = torch.where(is_better[..., None], tried, codes)
    whole = codes.flatten(1).to(torch.int8)
    if scheme == "int8":
        return QuantizedTensor("int8", whole, best)
    return QuantizedTensor("int4", fp4.pack((whole + 8).to(torch.uint8)), best.half())


def _rounded(groups: Tensor, scale: Tensor, bottom: int, top: int, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """(scale as it is stored, codes); torch rounds a tie to even."""
    if scheme == "int4":
        scale = scale.clamp(_LEAST_HALF, _TOP_HALF).half().float()
    return scale, (groups / scale[..., None]).round().clamp(bottom, top)
