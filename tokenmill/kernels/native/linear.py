"""Linear layer on the C kernels; weights stay packed in memory, activations are quantised per row."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from tokenmill.kernels.linear.api import check_weight
from tokenmill.kernels.native.library import EPILOGUES, FORMATS, ActStruct, Library, WeightStruct
from tokenmill.kernels.native.pack import PackedWeight, pack


class NativeLinear:
    """See kernels/linear/api.Linear. `format`: see kernels/native/pack."""

    def __init__(self, library: Library, format: str, weight: Tensor, bias: Tensor | None = None) -> None:
        check_weight(weight, bias)
        n, k = weight.shape
        self._set(library, pack(library, weight, format), n, k, bias)

    @classmethod
    def of_packed(
        cls, library: Library, packed: PackedWeight, n: int, k: int, bias: Tensor | None = None
    ) -> NativeLinear:
        """For weights that were packed as a checkpoint holds them (pack_fp4). n, k: outputs and inputs."""
        layer = cls.__new__(cls)
        layer._set(library, packed, n, k, bias)
        return layer

    def _set(self, library: Library, packed: PackedWeight, n: int, k: int, bias: Tensor | None) -> None:
        self.out_features, self.in_features = n, k
        self._library = library
        self.packed = packed
        self._bias = None if bias is None else _padded_bias(bias, packed.columns)

    @property
    def num_bytes(self) -> int:
        return self.packed.num_bytes

    def struct(self, epilogue: str = "store") -> WeightStruct:
        """For calls from C; valid while this object lives."""
        packed = self.packed
        return WeightStruct(
            FORMATS[packed.format],
            EPILOGUES[epilogue],
            packed.columns,
            packed.inputs,
            self.out_features,
            packed.data.data_ptr(),
            None if packed.scale is None else packed.scale.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
        )

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """[T, K] -> [T, N] in the dtype of x (+ add). T may be 0."""
        rows = x.shape[0]
        out = torch.empty(rows, self.out_features) if add is None else add.float().clone()
        act = Activations(self.packed.format, rows, self.packed.inputs)
        act.quantise(self._library, x.float().contiguous())
        weight = self.struct("store" if add is None else "add")
        self._library.gemm(byref(weight), rows, *act.pointers, out.data_ptr(), self.out_features)
        return out.to(x.dtype)


class Activations:
    """Rows in the format that a weight reads: bf16, or int8 with a scale and an offset per group of 32."""

    def __init__(self, format: str, rows: int, inputs: int) -> None:
        self.format = format
        self.inputs = inputs
        self.y = torch.empty(rows, inputs, dtype=torch.bfloat16 if format == "bf16" else torch.int8)
        self.scale = torch.empty(rows, inputs // 32)
        self.offsets = torch.empty(rows, inputs // 16, dtype=torch.int32)

    @property
    def pointers(self) -> tuple[int, int, int]:
        return self.y.data_ptr(), self.scale.data_ptr(), self.offsets.data_ptr()

    def quantise(self, library: Library, x: Tensor, *, norm: Tensor | None = None, eps: float = 0.0) -> None:
        """x [T, n] float32, normalised first when `norm` [n] is given."""
        act = ActStruct(
            x.data_ptr(), x.shape[1], x.shape[1], self.inputs, None if norm is None else norm.data_ptr(), eps,
            0, 0.0, FORMATS[self.format], *self.pointers,
        )  # fmt: skip
        library.activate(byref(act), x.shape[0])


def _padded_bias(bias: Tensor, columns: int) -> Tensor:
    out = torch.zeros(columns)
    out[: len(bias)] = bias.float()
    return out
