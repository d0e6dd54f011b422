"""Shape arithmetic of 128x128 FP8 blocks, torch-free."""

from __future__ import annotations

BLOCK = 128


def scale_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Scale grid of a weight [N, K]; the last block of a row or column may be partial."""
    rows, columns = shape
    return -(-rows // BLOCK), -(-columns // BLOCK)
