"""RMS norm in float32, written out."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels import invariant


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(invariant.mean_square(wide) + eps) * weight.float()).to(x.dtype)
