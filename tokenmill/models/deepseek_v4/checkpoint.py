"""A V4 checkpoint seen through the hub's names, with quantised tensors expanded exactly to float32.

The storage layout of a tensor is told by its dtype and by its scale, not by the config alone (released checkpoints
mix FP8 and FP4): e4m3 with a scale per 128x128 block, or int8 holding two FP4 codes with a scale per 32 columns.
Anything else is refused by name. Not responsible for: which tensors are wanted (weights.py, models/loading.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.fp4 import reference as fp4
from tokenmill.kernels.fp4.api import GROUP
from tokenmill.kernels.fp8_block import reference as fp8_block
from tokenmill.kernels.fp8_block.layout import scale_shape
from tokenmill.models.deepseek_v4.names import fused_experts, hub_name
from tokenmill.models.weights import Checkpoint, listed

_SCALE_DTYPES = (torch.float8_e8m0fnu, torch.float32)
_PLAIN_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_FP4_DTYPES = (torch.int8, torch.uint8)
#: Endings by which other quantisers mark their tensors: NVFP4 and compressed-tensors.
_FOREIGN = (".weight_scale", ".weight_scale_2", ".input_scale", ".weight_packed", ".weight_global_scale")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a tensor comes from: a stored tensor, perhaps one expert's half of a fused one, perhaps with a scale."""

    stored: str
    shape: tuple[int, ...]
    scale: str | None = None
    expert: int | None = None
    half: int | None = None


class HubCheckpoint:
    """Implements models/weights.Checkpoint over another one."""

    def __init__(self, inner: Checkpoint) -> None:
        self._inner = inner
        self.path = inner.path
        self.config = inner.config
        self.tokenizer_path = inner.tokenizer_path
        self.eos_token_ids = inner.eos_token_ids
        self._sources = self._map()

    def digest(self) -> str:
        return self._inner.digest()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: source.shape for name, source in self._sources.items()}

    def release(self, name: str) -> None:
        source = self._sources[name]
        if source.expert is None:  # a fused tensor is read many times
            self._inner.release(source.stored)

    def read(self, name: str) -> Tensor:
        source = self._sources[name]
        stored = self._inner.read(source.stored)
        if source.scale is not None:
            return self._expand(source, stored, self._inner.read(source.scale))
        if source.expert is not None:
            stored = stored[source.expert]
        return stored if source.half is None else stored.chunk(2)[source.half]

    # -- names --

    def _map(self) -> dict[str, _Source]:
        shapes = self._inner.shapes()
        stored_of = {hub_name(name): name for name in shapes}
        if len(stored_of) < len(shapes):
            twice = [name for name in shapes if stored_of[hub_name(name)] != name]
            raise CheckpointError(f"{self.path} holds the same tensor under two names: {listed(twice)}")
        foreign = [name for name in stored_of if name.endswith(_FOREIGN)]
        if foreign:
            raise CheckpointError(
                f"{self.path} is quantised in a layout that is not known ({listed(foreign, 3)}): possible are "
                "FP8 in 128x128 blocks and FP4 in groups of 32, with '.scale' tensors; convert it, or use the original"
            )
        sources: dict[str, _Source] = {}
        for name, stored in stored_of.items():
            if fused := fused_experts(name):
                sources |= self._split(fused, stored, shapes[stored])
            elif not (name.endswith(".scale") and f"{name.removesuffix('scale')}weight" in stored_of):
                scale = stored_of.get(f"{name.removesuffix('weight')}scale") if name.endswith(".weight") else None
                sources[name] = _Source(stored, self._logical_shape(stored, shapes[stored]), scale)
        return sources

    def _split(self, fused: tuple[str, str], stored: str, shape: tuple[int, ...]) -> dict[str, _Source]:
        """gate_up [E, 2F, C] is w1 over w3; down [E, C, F] is w2."""
        prefix, part = fused
        if len(shape) != 3:
            raise CheckpointError(f"{self.path}: {stored} {shape} should have three dimensions, experts first")
        if part == "down":
            return {f"{prefix}.{e}.w2.weight": _Source(stored, shape[1:], expert=e) for e in range(shape[0])}
        half = (shape[1] // 2, shape[2])
        return {
            f"{prefix}.{e}.{name}.weight": _Source(stored, half, expert=e, half=i)
            for e in range(shape[0])
            for i, name in enumerate(("w1", "w3"))
        }

    def _logical_shape(self, stored: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """FP4 packs two columns into a byte. Reading is a view of the mapped file and costs nothing."""
        if len(shape) == 2 and self._inner.read(stored).dtype in _FP4_DTYPES:
            return shape[0], 2 * shape[1]
        return shape

    # -- quantised tensors --

    def _expand(self, source: _Source, codes: Tensor, scale: Tensor) -> Tensor:
        shape = source.shape
        if scale.dtype in _SCALE_DTYPES and len(shape) == 2:
            if codes.dtype is torch.float8_e4m3fn and tuple(scale.shape) == scale_shape(shape):
                return fp8_block.dequantize(codes, scale)
            if codes.dtype in _FP4_DTYPES and tuple(scale.shape) == (shape[0], -(-shape[1] // GROUP)):
                return fp4.dequantize(codes, scale)
        raise CheckpointError(
            f"{self.path}: {source.stored} {_named(codes)} with scale {_named(scale)} is a quantisation layout that "
            f"is not known: possible are float8_e4m3fn with scale {scale_shape(shape) if len(shape) == 2 else '2-d'}, "
            f"and int8 (two FP4 codes) with one scale per {GROUP} columns; scales are float8_e8m0fnu or float32"
        )

    def check_plain(self) -> None:
        """Refuse tensors without a scale whose dtype does not hold plain numbers."""
        for source in self._sources.values():
            dtype = self._inner.read(source.stored).dtype
            if source.scale is None and dtype not in _PLAIN_DTYPES:
                raise CheckpointError(
                    f"{self.path}: {source.stored} is {_short(dtype)} without a '.scale' tensor: this quantisation "
                    f"layout is not known; possible without scale: {', '.join(_short(d) for d in _PLAIN_DTYPES)}"
                )


def _named(tensor: Tensor) -> str:
    return f"{_short(tensor.dtype)} {tuple(tensor.shape)}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
