"""Time as whole numbers: a tick is 2**-30 s (0.93 ns), so that multiples of it add up without rounding.

A float holds such seconds exactly up to 2**23 s (97 days); sums beyond that are kept in ticks. What measures time for a
bill rounds it to ticks once, where it reads the clock. Not responsible for: clocks (core/clock).
"""

from __future__ import annotations

from collections.abc import Sequence

TICKS_PER_S = 2**30


def to_ticks(seconds: float) -> int:
    """The nearest tick; never falls when `seconds` rises."""
    return round(seconds * TICKS_PER_S)


def to_seconds(ticks: int) -> float:
    return ticks / TICKS_PER_S


def on_grid(seconds: float) -> float:
    """`seconds` rounded to a whole tick."""
    return to_seconds(to_ticks(seconds))


def deal(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to `weights` (all >= 0) that sum to `total`; all weights 0: equal parts.

    Each is off by less than one of an exact share, and cumulative: parts 0 to k sum to the rounded share of them all.
    """
    if not weights:
        return []
    whole = sum(weights)
    if whole <= 0:
        weights, whole = [1.0] * len(weights), float(len(weights))
    parts, done, dealt = [], 0.0, 0
    for weight in weights:
        done += weight
        upto = min(total, round(total * (done / whole)))
        parts.append(upto - dealt)
        dealt = upto
    parts[-1] += total - dealt
    return parts
