"""What steps took, by size: medians of recent measurements, and what they say of sizes not seen yet. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from statistics import median_low

#: Measurements kept per size: the median of so many forgets a change of load within a second or so.
_NUM_KEPT = 9


class CostTable:
    """Seconds by a whole number (rows of a step, or sequences drafted for), never falling with it.

    A size measured a few times only may look cheaper than a smaller one; such neighbours are averaged, weighted by
    how often each was measured (isotonic regression, pool adjacent violators), or the luckiest size would be chosen.
    Between two sizes seen holds the line between them, beyond the largest the line goes on.
    """

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._sizes: list[int] = []
        self._fitted: list[float] | None = []

    def record(self, size: int, seconds: float) -> None:
        if size not in self._seen:
            self._seen[size] = deque(maxlen=_NUM_KEPT)
            insort(self._sizes, size)
        self._seen[size].append(seconds)
        self._fitted = None

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def num_seen(self, size: int) -> int:
        return len(self._seen.get(size, ()))

    def seconds(self, size: int) -> float:
        """0 before anything was recorded."""
        if not self._sizes:
            return 0.0
        if self._fitted is None:
            self._fitted = _rising([(median_low(self._seen[n]), len(self._seen[n])) for n in self._sizes])
        sizes, fitted = self._sizes, self._fitted
        i = bisect_left(sizes, size)
        if i < len(sizes) and (sizes[i] == size or i == 0):
            return fitted[i]
        if len(sizes) == 1:
            return fitted[0]
        i = min(i, len(sizes) - 1)
        share = (size - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return fitted[i - 1] + share * (fitted[i] - fitted[i - 1])


def _rising(points: list[tuple[float, int]]) -> list[float]:
    """Values that never fall, closest to `points` (value, weight) in weighted squares."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of points
    for value, weight in points:
        mean, total, count = value, float(weight), 1
        while pools and pools[-1][0] > mean:
            before, its_total, its_count = pools.pop()
            mean = (before * its_total + mean * total) / (its_total + total)
            total, count = total + its_total, count + its_count
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]
