"""Where a worker's seconds go: each since the process started is start-up, busy or idle, and in one frame. Pure.

Stamps are rounded to ticks (core/ticks), so that all that is reported adds up exactly. Not responsible for: which
request is charged (the engine's shares), what a second costs (cost/).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.ticks import on_grid


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds since the last interval was taken; they sum to until_s minus its until_s."""

    until_s: float
    busy_s: float
    idle_s: float
    startup_s: float


class TimeMeter:
    """Told at each change of occupation what the time just past was spent on."""

    def __init__(self, started_s: float) -> None:
        self._mark_s = on_grid(started_s)
        self._busy_s = self._idle_s = self._startup_s = 0.0

    @property
    def mark_s(self) -> float:
        """Up to here time is accounted for."""
        return self._mark_s

    def started(self, now_s: float) -> None:
        self._startup_s += self._advance(now_s)

    def busy(self, now_s: float) -> None:
        self._busy_s += self._advance(now_s)

    def idle(self, now_s: float) -> None:
        self._idle_s += self._advance(now_s)

    def take(self) -> Interval:
        """What has added up, to be reported once."""
        interval = Interval(self._mark_s, self._busy_s, self._idle_s, self._startup_s)
        self._busy_s = self._idle_s = self._startup_s = 0.0
        return interval

    def _advance(self, now_s: float) -> float:
        """A clock that runs back has told nothing new: the mark stays until it is passed again."""
        seconds = max(0.0, on_grid(now_s) - self._mark_s)
        self._mark_s += seconds
        return seconds
