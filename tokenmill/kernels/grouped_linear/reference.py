"""Grouped linear layer in float32: one plain layer per group."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels import invariant


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    assert x.shape[1:] == (weight.shape[0], weight.shape[2]), f"{tuple(x.shape)} with {tuple(weight.shape)}"
    groups = [invariant.matmul(x[:, g].float(), weight[g].float()) for g in range(weight.shape[0])]
    return torch.stack(groups, dim=1).to(x.dtype)
