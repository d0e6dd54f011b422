"""Drives a load in real time: asks the conductor what is due, sends it, tells it what ended.

Not responsible for: what is sent (serve), one request (client), which turn comes next (workloads.conductor).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from tokenmill.workloads.conductor import Conductor, Due
from tokenmill.workloads.request_record import RequestRecord

Send = Callable[[Due], Awaitable[RequestRecord]]
_LAG_EVERY_S = 0.02
_NUM_HOPELESS = 20


@dataclass(slots=True)
class LoadResult:
    """
    records             of everything that was sent and came to an end, in order of ending
    sent                (turn, seconds since the start) in order of sending
    in_flight_mean      counted while it happened, from the first send to the last end
    lag_s               how late a timer of this process rang, sampled: what the client itself adds
    stopped             why it ended early; None: it did not
    """

    records: list[RequestRecord] = field(default_factory=list)
    sent: list[tuple[Due, float]] = field(default_factory=list)
    num_abandoned_turns: int = 0
    in_flight_mean: float | None = None
    lag_s: list[float] = field(default_factory=list)
    stopped: str | None = None


class _Gauge:
    """Time-average of the number in flight, integrated as it changes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._first_s: float | None = None
        self._last_s = 0.0
        self._area = 0.0
        self.number = 0

    def add(self, change: int) -> None:
        now_s = self._now()
        if self._first_s is None:
            self._first_s = now_s
        else:
            self._area += self.number * (now_s - self._last_s)
        self._last_s = now_s
        self.number += change

    def mean(self) -> float | None:
        span_s = self._last_s - (self._first_s or 0.0)
        return self._area / span_s if span_s > 0 else None


class _Driver:
    def __init__(
        self,
        conductor: Conductor,
        send: Send,
        now: Callable[[], float],
        on_done: Callable[[RequestRecord], None],
        max_in_flight: int | None,
    ) -> None:
        self._conductor = conductor
        self._send = send
        self._began_s = now()  # records are on the caller's clock, pacing is on the loop's, which never runs back
        self._pace_s = asyncio.get_running_loop().time()
        self._on_done = on_done
        self._max_in_flight = max_in_flight
        self._wake = asyncio.Event()
        self._waiting: deque[Due] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gauge = _Gauge(self._elapsed)
        self._num_failed_in_row = 0
        self._failure: BaseException | None = None
        self.result = LoadResult()

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._pace_s

    async def run(self) -> None:
        while not (self._conductor.is_done and not self._waiting):
            if self._failure is not None:
                raise self._failure
            if self._is_hopeless():
                return
            self._waiting.extend(self._conductor.take_due(self._elapsed()))
            while self._waiting and (self._max_in_flight is None or self._gauge.number < self._max_in_flight):
                self._start(self._waiting.popleft())
            if self._conductor.is_done and not self._waiting:
                return
            await self._pause()

    async def _pause(self) -> None:
        """Until something ends or becomes due."""
        self._wake.clear()
        due_s = self._conductor.next_due_s()
        if due_s is None:
            await self._wake.wait()
            return
        delay_s = due_s - self._elapsed()
        if delay_s > 0:
            timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _start(self, due: Due) -> None:
        self._gauge.add(1)
        self.result.sent.append((due, self._elapsed()))
        task = asyncio.ensure_future(self._one(due))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, due: Due) -> None:
        try:
            record = await self._send(due)
        except BaseException as error:
            self._failure = self._failure or error
            self._wake.set()
            raise
        self._gauge.add(-1)
        record = replace(record, due_s=self._began_s + due.due_s)
        self.result.records.append(record)
        self._num_failed_in_row = 0 if record.is_ok else self._num_failed_in_row + 1
        now_s = self._elapsed()
        self._conductor.ended(due.session.session_id, due.turn_index, now_s, is_ok=record.is_ok)
        self._on_done(record)
        self._wake.set()

    def _is_hopeless(self) -> bool:
        """A server that is gone fails everything at once: go on and the whole load is burnt in a second."""
        if self._num_failed_in_row < max(_NUM_HOPELESS, 2 * (self._gauge.number + 1)):
            return False
        last = self.result.records[-1].error
        self.result.stopped = f"the last {self._num_failed_in_row} requests failed ({last})"
        return True

    async def close(self) -> None:
        self.result.num_abandoned_turns = self._conductor.num_abandoned_turns
        self.result.in_flight_mean = self._gauge.mean()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def drive(
    conductor: Conductor,
    send: Send,
    now: Callable[[], float],
    on_done: Callable[[RequestRecord], None] = lambda record: None,
    *,
    max_in_flight: int | None = None,
) -> LoadResult:
    """Run the conductor to its end. Interrupted (cancelled), what has come back is the result, and marked.

    max_in_flight  above it a due turn waits, and its lateness shows it
    """
    driver = _Driver(conductor, send, now, on_done, max_in_flight)
    lag = asyncio.ensure_future(_watch_lag(driver.result.lag_s))
    try:
        await driver.run()
    except asyncio.CancelledError:
        driver.result.stopped = "interrupted"
    finally:
        lag.cancel()
        await driver.close()
    return driver.result


async def _watch_lag(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.sleep(_LAG_EVERY_S)
        lags.append(loop.time() - began - _LAG_EVERY_S)
