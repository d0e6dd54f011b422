"""Work of attention over a full or windowed context, torch-free."""

from __future__ import annotations

from tokenmill.core.work import Work


def attention_work(
    query_len: int,
    context_len: int,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    cache_bytes_per_value: float,
    window: int | None = None,
) -> Work:
    """One layer, one sequence. FLOPs = 4 H D per (row, key) pair: score and weighted sum.

    Keys and values of every position that any row sees are read once.
    """
    pairs = seen_pairs(query_len, context_len, window)
    first = 0 if window is None else max(0, context_len - window + 1)
    read = (context_len + query_len - first) * 2 * num_kv_heads * head_dim if query_len else 0
    return Work(flops=4.0 * num_heads * head_dim * pairs, cache_bytes=read * cache_bytes_per_value)


def seen_pairs(query_len: int, context_len: int, window: int | None) -> int:
    """Sum over rows of the keys a row sees: min(position + 1, window)."""
    first, last = context_len + 1, context_len + query_len  # keys seen without a window
    if window is None or last <= window:
        return (first + last) * query_len // 2
    growing = max(0, window - first + 1)  # rows that still see everything
    return (first + first + growing - 1) * growing // 2 + (query_len - growing) * window
