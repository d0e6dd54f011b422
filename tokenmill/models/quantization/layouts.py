"""How quantised weights lie in checkpoints of others: the stored tensors of a module to a QuantizedTensor, and back.

ModelOpt (`weight_scale`, `weight_scale_2`), compressed-tensors (`weight_packed`, ...), and DeepSeek V3's
`weight_scale_inv`. What a module is follows from its tensors, never from what the config says of the whole file.
Not responsible for: configs (configs.py), files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError, ConfigError
from tokenmill.kernels.quantized.packed import QuantizedTensor, Scheme

Layout = Literal["modelopt", "compressed-tensors"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

#: Endings of tensors that belong to a quantised module beside `weight`. Those of activations and of KV rows are
#: ignored: both are quantised here by their own values while they are computed.
_REFUSED_ENDINGS = ("weight_zero_point", "weight_g_idx", "pre_quant_scale", "svdquant_lora_a", "svdquant_lora_b")
PART_ENDINGS = (
    "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv", "weight_global_scale", "weight_shape",
    *_REFUSED_ENDINGS,
)  # fmt: skip
IGNORED_ENDINGS = ("input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale", "output_scale")
#: One of these makes a module quantised.
_MARKS = ("weight_packed", "weight_scale", "weight_scale_inv")

_WRITABLE: dict[Layout, tuple[Scheme, ...]] = {
    "modelopt": ("nvfp4",),  # its other formats hold scales of activations as well, which need calibration
    "compressed-tensors": ("nvfp4", "mxfp4", "fp8_block", "fp8", "int8", "int4"),
}


def is_quantized(parts: Mapping[str, object]) -> bool:
    return any(mark in parts for mark in _MARKS)


def check_writable(layout: Layout, scheme: Scheme) -> None:
    if scheme not in _WRITABLE[layout]:
        raise ConfigError(
            f"the {layout} layout has no {scheme}: choose {', '.join(_WRITABLE[layout])}, "
            "or --layout compressed-tensors"
        )


# -- reading --


def from_parts(module: str, parts: Mapping[str, Tensor]) -> QuantizedTensor:
    """parts: the module's tensors by their endings. CheckpointError names what does not fit together."""
    for ending in _REFUSED_ENDINGS:
        if ending in parts:
            raise CheckpointError(
                f"{module}.{ending}: weights with zero points, permuted groups, scaled inputs or a low-rank rest "
                "cannot be read: possible are symmetric weights in their own order; convert the model anew"
            )
    found = _packed(module, parts) if "weight_packed" in parts else _plain_name(module, parts)
    if found is None:
        raise _unknown(module, parts)
    return found


def _packed(module: str, parts: Mapping[str, Tensor]) -> QuantizedTensor | None:
    codes, scale = parts["weight_packed"], parts.get("weight_scale")
    if codes.dim() != 2 or scale is None or scale.dim() != 2 or scale.shape[0] not in (1, codes.shape[0]):
        return None
    if codes.dtype is torch.int32:
        return _integers_from_words(module, codes, scale, parts.get("weight_shape"))
    if codes.dtype is not torch.uint8:
        return None
    whole = parts.get("weight_global_scale")
    return _four_bits(codes, scale, whole, divides=True)


def _plain_name(module: str, parts: Mapping[str, Tensor]) -> QuantizedTensor | None:
    codes = parts.get("weight")
    scale = parts["weight_scale"] if "weight_scale" in parts else parts["weight_scale_inv"]
    if codes is None or codes.dim() != 2:
        return None
    if codes.dtype in (torch.uint8, torch.int8) and scale.dtype in (torch.uint8, torch.float8_e4m3fn):
        return _four_bits(codes.view(torch.uint8), scale, parts.get("weight_scale_2"), divides=False)
    if "weight_scale_2" in parts or not scale.is_floating_point():
        return None
    if codes.dtype is torch.int8:
        per_row = _per_row(scale, codes.shape[0])
        return None if per_row is None else QuantizedTensor("int8", codes, per_row)
    return _fp8(codes, scale) if codes.dtype is torch.float8_e4m3fn else None


def _four_bits(codes: Tensor, scale: Tensor, whole: Tensor | None, *, divides: bool) -> QuantizedTensor | None:
    rows, columns = codes.shape[0], 2 * codes.shape[1]
    if whole is not None:
        fits = scale.dtype is torch.float8_e4m3fn and tuple(scale.shape) == (rows, columns // 16) and whole.numel() == 1
        return QuantizedTensor("nvfp4", codes, scale, whole.reshape(()), divides) if fits and not columns % 16 else None
    is_e8m0 = scale.dtype in (torch.uint8, torch.float8_e8m0fnu)
    if not is_e8m0 or tuple(scale.shape) != (rows, columns // 32) or columns % 32:
        return None
    return QuantizedTensor("mxfp4", codes, scale.view(torch.float8_e8m0fnu))


def _fp8(codes: Tensor, scale: Tensor) -> QuantizedTensor | None:
    per_row = _per_row(scale, codes.shape[0])
    if per_row is not None:
        return QuantizedTensor("fp8", codes, per_row)
    grid = scale.squeeze((1, 3)) if scale.dim() == 4 else scale  # ModelOpt keeps the blocks' own dimensions
    if grid.dim() == 2 and tuple(grid.shape) == tuple(-(-n // 128) for n in codes.shape):
        return QuantizedTensor("fp8_block", codes, grid)
    return None


def _per_row(scale: Tensor, rows: int) -> Tensor | None:
    """[1, 1] or [N, 1], if it is one scale per tensor or per row."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    return scale.reshape(rows, 1) if tuple(scale.shape) in ((rows,), (rows, 1)) else None


def _integers_from_words(module: str, words: Tensor, scale: Tensor, shape: Tensor | None) -> QuantizedTensor | None:
    """int32 words hold q + 8 eight times or q + 128 four times, the first input in the lowest bits."""
    if shape is None or shape.numel() != 2:
        raise CheckpointError(f"{module}.weight_packed needs {module}.weight_shape: fetch the model again")
    rows, columns = (int(n) for n in shape.tolist())
    bytes_per_row = words.shape[1] * 4
    if rows != words.shape[0] or columns % scale.shape[1]:
        return None
    data = words.contiguous().view(torch.uint8)
    if bytes_per_row * 2 == columns:
        return QuantizedTensor("int4", data, scale)
    if bytes_per_row == columns and scale.shape[1] == 1:
        return QuantizedTensor("int8", (data ^ 128).view(torch.int8), scale)
    return None


def _unknown(module: str, parts: Mapping[str, Tensor]) -> CheckpointError:
    told = ", ".join(f"{ending} {_short(part)}" for ending, part in parts.items())
    return CheckpointError(
        f"{module} ({told}) is a quantisation layout that is not known, or its scales do not fit its codes: possible "
        "are NVFP4 (E4M3 scales per 16 inputs, one per tensor), MXFP4 (E8M0 per 32), FP8 (E4M3 with a scale per "
        "tensor, row or 128x128 block), int8 (per tensor or row) and int4 (int32 words, symmetric groups)"
    )


def _short(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def check_scales(module: str, weight: QuantizedTensor) -> None:
    """Reads them, which from_parts does not."""
    scales = weight.scales()
    if not bool(torch.isfinite(scales).all()) or bool((scales < 0).any()):
        raise CheckpointError(
            f"{module}: a scale is negative or not finite: the file is damaged; fetch the model again"
        )


# -- writing --


def to_parts(weight: QuantizedTensor, layout: Layout) -> dict[str, Tensor]:
    """What is stored, by ending. Tensors of more than one value have as many rows as the weight (or its blocks)."""
    check_writable(layout, weight.scheme)
    codes, scale = weight.codes, weight.scale
    if weight.scheme == "nvfp4":
        assert weight.tensor_scale is not None and not weight.divides
        if layout == "modelopt":
            return {"weight": codes, "weight_scale": scale, "weight_scale_2": weight.tensor_scale}
        return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": (1 / weight.tensor_scale).view(1)}
    if weight.scheme == "mxfp4":
        return {"weight_packed": codes, "weight_scale": scale.view(torch.uint8)}
    if weight.scheme == "int4":
        shape = torch.tensor(weight.shape, dtype=torch.int64)
        return {"weight_packed": codes.view(torch.int32), "weight_scale": scale, "weight_shape": shape}
    return {"weight": codes, "weight_scale": scale}


def default_layout(scheme: Scheme) -> Layout:
    """The one that is most common for it."""
    return "modelopt" if scheme == "nvfp4" else "compressed-tensors"
