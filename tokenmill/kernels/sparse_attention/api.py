"""Attention of each query over its own gathered rows, which are key and value at once, with a sink per head.

a_h = softmax over [q_h . K / sqrt(D), sink_h]; the sink has no value and only enlarges the denominator.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class SparseAttention(Protocol):
    def __call__(self, q: Tensor, rows: Tensor, is_valid: Tensor, sink: Tensor, scale: float) -> Tensor:
        """q [T, H, D], rows [T, n, D], is_valid [T, n] bool, sink [H], float32 -> [T, H, D].

        Rows that are not valid may hold anything, infinities included. A query's bits depend on n and on its own
        rows, never on the other queries.
        """
        ...
