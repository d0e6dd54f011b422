"""A weight in few bits: its codes and scales, and what they stand for. Not responsible for: rounding, file layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from tokenmill.kernels.fp4 import reference as fp4

Scheme = Literal["nvfp4", "mxfp4", "fp8_block", "fp8", "int8", "int4"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

#: Input columns that share a scale; None: a scale per tensor, row or 128x128 block.
GROUPS: dict[Scheme, int | None] = {
    "nvfp4": 16, "mxfp4": 32, "fp8_block": None, "fp8": None, "int8": None, "int4": 32
}  # fmt: skip
BITS: dict[Scheme, int] = {"nvfp4": 4, "mxfp4": 4, "fp8_block": 8, "fp8": 8, "int8": 8, "int4": 4}
_INT4_ZERO = 8


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """
    codes   nvfp4, mxfp4: uint8 [N, K/2], E2M1, the even input in the low nibble; fp8*: float8_e4m3fn [N, K];
            int8: int8 [N, K]; int4: uint8 [N, K/2] holding q + 8, the even input in the low nibble
    scale   nvfp4: E4M3 [N, K/16]; mxfp4: E8M0 [N, K/32]; fp8_block: [ceil(N/b), ceil(K/b)];
            fp8 and int8: [1, 1] or [N, 1]; int4: [N, K/group]
    tensor_scale   nvfp4 only, float32 scalar
    divides        whether tensor_scale divides the block scales (compressed-tensors) or multiplies them (ModelOpt)
    block          side of fp8_block's squares
    """

    scheme: Scheme
    codes: Tensor
    scale: Tensor
    tensor_scale: Tensor | None = None
    divides: bool = False
    block: int = 128

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns * (2 if BITS[self.scheme] == 4 else 1)

    @property
    def num_bytes(self) -> int:
        extra = 0 if self.tensor_scale is None else self.tensor_scale.nbytes
        return self.codes.nbytes + self.scale.nbytes + extra

    def scales(self) -> Tensor:
        """float32, in the shape of `scale`, tensor_scale applied."""
        scale = self.scale.float()
        if self.tensor_scale is None:
            return scale
        whole = self.tensor_scale.float().reshape(())
        return scale / whole if self.divides else scale * whole

    def dequantize(self) -> Tensor:
        """[N, K] float32: code times scale, one rounding."""
        return self.rows(0, self.shape[0])

    def rows(self, begin: int, end: int) -> Tensor:
        """Rows begin .. end of what it stands for, float32; of fp8_block from a block's edge."""
        values = self._values(self.codes[begin:end])
        scales = self.scales()
        if self.scheme == "fp8_block":
            assert begin % self.block == 0, f"row {begin} is inside a block of {self.block}"
            scales = scales[begin // self.block :].repeat_interleave(self.block, 0)[: end - begin]
            return values * scales.repeat_interleave(self.block, 1)[:, : values.shape[1]]
        scales = scales if scales.shape[0] == 1 else scales[begin:end]
        if scales.shape[1] == 1:
            return values * scales
        return (values.unflatten(1, (scales.shape[1], -1)) * scales[:, :, None]).flatten(1)

    def _values(self, codes: Tensor) -> Tensor:
        if self.scheme in ("nvfp4", "mxfp4"):
            return fp4.from_codes(fp4.unpack(codes.contiguous()))
        if self.scheme == "int4":
            return fp4.unpack(codes.contiguous()).float() - _INT4_ZERO
        return codes.float()

    def codes_int8(self) -> Tensor:
        """int8 and int4: [N, K] int8, signed."""
        assert self.scheme in ("int8", "int4"), f"{self.scheme} has no integer codes"
        if self.scheme == "int8":
            return self.codes
        return (fp4.unpack(self.codes.contiguous()).to(torch.int8)) - _INT4_ZERO
