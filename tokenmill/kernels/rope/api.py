"""Rotary position embedding: pairs of channels turned by position x frequency."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tokenmill.kernels.rope.frequencies import Rotary


class Rope(Protocol):
    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
        """x [T, H, R], cos and sin [T, R/2] float32 -> [T, H, R] in the dtype of x, a new tensor.

        interleaved False: pair i is (i, i + R/2), the layout of Hugging Face checkpoints; True: (2i, 2i + 1).
        The inverse rotation is the same call with -sin.
        """
        ...


class RotaryTable:
    """cos and sin rows for any positions; computed once per step and shared by all layers."""

    def __init__(self, rotary: Rotary) -> None:
        self._frequencies = torch.tensor(rotary.frequencies, dtype=torch.float32)
        self._magnitude = rotary.magnitude

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [T] int64 -> cos, sin [T, R/2] float32."""
        angles = positions.float().unsqueeze(1) * self._frequencies
        return angles.cos() * self._magnitude, angles.sin() * self._magnitude
