"""Work of a linear layer, torch-free."""

from __future__ import annotations

from tokenmill.core.work import Work


def linear_work(num_rows: int, in_features: int, out_features: int, bytes_per_weight: float) -> Work:
    """FLOPs = 2 T K N; the weight is read once per step however many rows there are."""
    flops = 2.0 * num_rows * in_features * out_features
    return Work(flops=flops, weight_bytes=in_features * out_features * bytes_per_weight)
