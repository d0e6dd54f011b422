"""Walsh-Hadamard transform by butterflies: additions and subtractions only, hence exact per row."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels.hadamard.api import block_size


def hadamard(x: Tensor) -> Tensor:
    size = block_size(x.shape[-1])
    y = x.unflatten(-1, (-1, size))
    half = 1
    while half < size:
        pairs = y.unflatten(-1, (size // (2 * half), 2, half))
        first, second = pairs.unbind(-2)
        y = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        half *= 2
    return (y * size**-0.5).flatten(-2)
