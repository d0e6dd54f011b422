"""Work of the rotary embedding, torch-free."""

from __future__ import annotations

from tokenmill.core.work import Work


def rope_work(num_rows: int, num_heads: int, dim: int) -> Work:
    """Per pair 4 multiplications and 2 additions = 3 FLOPs per channel; `num_heads` counts query and key heads."""
    return Work(flops=3.0 * num_rows * num_heads * dim)
