"""Mean and percentiles of a list of numbers, with the unit in the key. Not responsible for: what is measured."""

from __future__ import annotations

from collections.abc import Sequence

LEVELS = (50, 90, 99)


def percentile(values: Sequence[float], level: float) -> float:
    """Linear interpolation between the two nearest ranks (what numpy does by default); `values` need no order."""
    assert values and 0 <= level <= 100, f"{len(values)} values, level {level}"
    ordered = sorted(values)
    rank = (len(ordered) - 1) * level / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """`{name}_mean`, `_p50`, `_p90`, `_p99`; None where there is nothing to measure."""
    report: dict[str, float | None] = {f"{name}_mean": sum(values) / len(values) if values else None}
    return report | {f"{name}_p{level}": percentile(values, level) if values else None for level in LEVELS}
