"""Work of the embedding look-up, torch-free."""

from __future__ import annotations

from tokenmill.core.work import Work


def embedding_work(num_rows: int, size: int, bytes_per_weight: float) -> Work:
    """Only the rows of this step's tokens are read."""
    return Work(weight_bytes=num_rows * size * bytes_per_weight)
