"""Normalised Hadamard rotation of indexer queries and keys before they are rounded to few bits.

It must be applied to BOTH sides or to neither: it is orthogonal, so the dot products stay what they were.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Hadamard(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] float32 -> [..., D]: H x / sqrt(block) within blocks of `block_size(D)` channels."""
        ...


def block_size(dim: int) -> int:
    """Largest power of two that divides `dim`: all of a width like 128, blocks of 8 for a width like 24."""
    return dim & -dim
