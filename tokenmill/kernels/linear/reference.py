"""Linear layer in float32, each row's bits independent of the other rows."""

from __future__ import annotations

from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.linear.api import check_weight


class ReferenceLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        check_weight(weight, bias)
        self.out_features, self.in_features = weight.shape
        self._weight = weight.float()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        out = invariant.matmul(x.float(), self._weight)
        out = out if self._bias is None else out + self._bias
        return (out if add is None else out + add.float()).to(x.dtype)
