"""Splitting one step's seconds over the sequences in it, by the work each caused.

The rule. A step computes rows; every row (prompt token, decoded token or draft, accepted or not) passes the same
weights, so it counts the same. Attention adds to a row in proportion to the context it reads. Hence
    weight = n + context_weight * (n * c + n * (n + 1) / 2)
for n rows behind a context of c tokens, context_weight being attention work per context token in units of a row's
other work. What a step costs at all (reading the weights, launching) is shared in the same proportion: it is there
because of all of them. Not responsible for: time outside steps, and for whom it is charged to (cost/ledger).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def row_weight(num_tokens: int, context_len: int = 0, *, context_weight: float = 0.0) -> float:
    """Weight of one sequence's part of a step: `num_tokens` rows behind `context_len` tokens (rule above)."""
    pairs = num_tokens * context_len + num_tokens * (num_tokens + 1) / 2
    return num_tokens + context_weight * pairs


def split_step(seconds: float, weights: Sequence[float]) -> list[float]:
    """Shares of `seconds`, proportional to `weights` (all >= 0), that sum to `seconds` exactly in any order.

    Exactness: `seconds` is a whole number (< 2**53) of quanta of a power of two; whole quanta are dealt out, so every
    partial sum is a float without rounding. A share is off by a few quanta (1e-16 of `seconds`) at most. All weights
    0: equal shares.
    """
    assert seconds >= 0 and math.isfinite(seconds), f"step of {seconds} s"
    assert all(w >= 0 and math.isfinite(w) for w in weights), f"weights {weights}"
    total = math.fsum(weights)
    if not weights or total == 0:
        weights, total = [1.0] * len(weights), float(len(weights))
    scale = min(53 - math.frexp(seconds)[1], 1074)  # 2**-1074 is the smallest float
    num_quanta = int(math.ldexp(seconds, scale))
    shares, done, dealt = [], 0.0, 0
    for i, weight in enumerate(weights):
        done += weight
        upto = num_quanta if i == len(weights) - 1 else min(num_quanta, int(num_quanta * (done / total)))
        shares.append(math.ldexp(upto - dealt, -scale))
        dealt = upto
    return shares
