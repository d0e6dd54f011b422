"""Linear layer y = x W^T + b: the contract of its kernels.

A kernel is made once per weight at load, so that it may pack the weight for the machine; it keeps what it needs
and the caller drops the plain weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tokenmill.core.errors import CheckpointError
from tokenmill.kernels.quantized.packed import QuantizedTensor


class Linear(Protocol):
    """One layer, ready to run. `in_features` K, `out_features` N."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """[T, K] -> [T, N] in the dtype of x; T may be 0. Operands are not changed, the result is new.

        add   [T, N], added to the result (a residual)
        """
        ...


class LinearKernel(Protocol):
    def __call__(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """weight [N, K], bias [N] or None."""
        ...


class PackedLinearKernel(Protocol):
    def __call__(self, parts: Sequence[QuantizedTensor], bias: Tensor | None = None) -> Linear:
        """parts: weights as a checkpoint holds them, one below the other; bias [N] or None."""
        ...


def check_weight(weight: Tensor, bias: Tensor | None) -> None:
    """Shapes are checked once, when the layer is made."""
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shape = None if bias is None else tuple(bias.shape)
        raise CheckpointError(
            f"linear layer: weight {tuple(weight.shape)} with bias {shape} is not possible: "
            "a weight is [out, in] and a bias [out]"
        )
