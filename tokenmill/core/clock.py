"""Clocks are passed in: real time in production, virtual time in tests and in the twin."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds; only differences have meaning."""
        ...


class SystemClock:
    """Monotonic and the same for every process of one host, so that stamps may cross process boundaries."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """Virtual time that moves only when told."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time runs forward only: {seconds}"
        self._now_s += seconds
