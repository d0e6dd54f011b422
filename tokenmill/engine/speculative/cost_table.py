"""What steps took, by size: medians of recent measurements, and what they say of sizes not seen yet. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from statistics import median_low

#: Measurements kept per size: the median of so many forgets a change of load within a second or so.
_NUM_KEPT = 9


class CostTable:
    """Seconds by a whole number (rows of a step, or passes of a drafter).

    Between two sizes seen the line between them; beyond the largest its own value, which is optimistic, so that
    trying is what finds out.
    """

    def __init__(self) -> None:
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []

    def record(self, size: int, seconds: float) -> None:
        if size not in self._seen:
            self._seen[size] = deque(maxlen=_NUM_KEPT)
            insort(self._sizes, size)
        self._seen[size].append(seconds)
        self._medians[size] = median_low(self._seen[size])

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def num_seen(self, size: int) -> int:
        return len(self._seen.get(size, ()))

    def seconds(self, size: int) -> float:
        """0 before anything was recorded."""
        if not self._sizes:
            return 0.0
        i = bisect_left(self._sizes, size)
        if i == len(self._sizes):
            return self._medians[self._sizes[-1]]
        high = self._sizes[i]
        if high == size or i == 0:
            return self._medians[high]
        low = self._sizes[i - 1]
        share = (size - low) / (high - low)
        return (1 - share) * self._medians[low] + share * self._medians[high]
