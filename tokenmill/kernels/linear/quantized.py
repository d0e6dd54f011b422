"""Linear layer whose weight stays packed and is expanded for each product, in float32: the reference for such weights.

Slow where there are kernels for the format; the memory between steps is that of the packed weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.linear.api import check_weight
from tokenmill.kernels.quantized.packed import QuantizedTensor, Scheme
from tokenmill.kernels.quantized.rounding import quantize


class QuantizedLinear:
    """See api.Linear. parts: one below the other, each in a format of its own."""

    def __init__(self, parts: Sequence[QuantizedTensor], bias: Tensor | None = None) -> None:
        self.parts = [_owned(part) for part in parts]
        self.out_features, self.in_features = sum(part.shape[0] for part in parts), parts[0].shape[1]
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        wide = x.float()
        out = torch.cat([invariant.matmul(wide, part.dequantize()) for part in self.parts], dim=1)
        out = out if self._bias is None else out + self._bias
        return (out if add is None else out + add.float()).to(x.dtype)


def make(scheme: Scheme, weight: Tensor, bias: Tensor | None = None) -> QuantizedLinear:
    """A plain weight, quantised now."""
    check_weight(weight, bias)
    return QuantizedLinear([quantize(weight, scheme)], bias)


def _owned(part: QuantizedTensor) -> QuantizedTensor:
    """What was read may be a view of a file that is let go."""
    whole = None if part.tensor_scale is None else part.tensor_scale.clone()
    return replace(part, codes=part.codes.clone(), scale=part.scale.clone(), tensor_scale=whole)
