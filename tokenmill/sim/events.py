"""Virtual time: what happens when. Events at one instant happen in the order in which they were planned.

Not responsible for: what the events do.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

_Event = list  # [time, number, callback or None]


class EventQueue:
    """The clock of a simulated world (core/clock.Clock) and the list of what is to come."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._events: list[_Event] = []
        self._num_planned = 0

    def now(self) -> float:
        return self._now_s

    def at(self, time_s: float, callback: Callable[[], None]) -> _Event:
        """Plan `callback`; the handle is for `cancel`."""
        assert time_s >= self._now_s, f"planned for {time_s}, and it is {self._now_s}"
        self._num_planned += 1
        event: _Event = [time_s, self._num_planned, callback]
        heappush(self._events, event)
        return event

    def after(self, seconds: float, callback: Callable[[], None]) -> _Event:
        return self.at(self._now_s + seconds, callback)

    @staticmethod
    def cancel(event: _Event | None) -> None:
        """It will not happen; unknown and past events do no harm."""
        if event is not None:
            event[2] = None

    def run_next(self) -> bool:
        """Let the next event happen; False when there is none."""
        while self._events:
            time_s, _, callback = heappop(self._events)
            if callback is not None:
                self._now_s = time_s
                callback()
                return True
        return False
