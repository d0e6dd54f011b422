"""Linear layer on CPU: torch's matrix product in the weight's own dtype."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels.linear.api import check_weight


class CpuLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        check_weight(weight, bias)
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        out = F.linear(x, self._weight, self._bias)
        return out if add is None else out + add
