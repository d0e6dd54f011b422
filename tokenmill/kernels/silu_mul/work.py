"""Work of the gated activation, torch-free."""

from __future__ import annotations

from tokenmill.core.work import Work


def silu_mul_work(num_rows: int, size: int) -> Work:
    """Per output element: negate, exp, add, divide, multiply = 5 FLOPs; `size` = F."""
    return Work(flops=5.0 * num_rows * size)
