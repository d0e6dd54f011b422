"""Work of an RMS norm, torch-free."""

from __future__ import annotations

from tokenmill.core.work import Work


def rms_norm_work(num_rows: int, size: int, bytes_per_weight: float) -> Work:
    """Per element: square, add, scale, weight = 4 FLOPs."""
    return Work(flops=4.0 * num_rows * size, weight_bytes=size * bytes_per_weight)
