"""Rotary embedding on CPU: turned in float32, rounded once to the dtype of x."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    wide = x.float()
    if interleaved:
        pairs = torch.view_as_complex(wide.reshape(*x.shape[:-1], x.shape[-1] // 2, 2))
        return torch.view_as_real(pairs * torch.complex(cos, sin).unsqueeze(1)).flatten(-2).to(x.dtype)
    # (a, b) -> (a cos - b sin, b cos + a sin): one product, and one with the halves swapped
    half = x.shape[-1] // 2
    turned = wide * torch.cat((cos, cos), dim=-1).unsqueeze(1)
    turned.addcmul_(wide.roll(half, -1), torch.cat((-sin, sin), dim=-1).unsqueeze(1))
    return turned.to(x.dtype)
