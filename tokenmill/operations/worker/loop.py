"""A worker's one thread: take messages, step the engine, report. Ends by draining, by being told, or by failing.

Not responsible for: process matters (main.py), sockets (link.py), what a step does (engine/).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenmill.core.clock import Clock
from tokenmill.core.errors import TokenmillError, UnavailableError
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, TokenDelta
from tokenmill.core.wire import (
    Abort,
    Drain,
    Generate,
    Goodbye,
    Hello,
    Introduce,
    ReportCache,
    StepFrame,
    ToWorker,
    WorkerStats,
)
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker.cache_reports import CacheReports, Log
from tokenmill.operations.worker.link import Link
from tokenmill.operations.worker.meter import TimeMeter

_log = logging.getLogger(__name__)


class EngineLike(Protocol):
    """What the loop needs of an engine; `engine.engine.Engine` has it.

    settled_s   up to when the deltas it gave out account for its time: now, or the end of the last step whose result
                is out while the next one runs already
    """

    card: ModelCard

    @property
    def held_s(self) -> float:
        """Seconds of steps so far that later deltas will bring."""
        ...

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> bool: ...

    def has_work(self) -> bool: ...

    def step(self) -> list[TokenDelta]: ...

    def settled_s(self, now_s: float) -> float: ...

    def stats(self) -> WorkerStats: ...

    def open_cache_log(self) -> Log: ...

    def check_integrity(self) -> None: ...


class Lifeline(Protocol):
    """What the outside wants of this process: signals and the parent's life, looked at between two steps.

    wants_drain   finish what runs, then go
    wants_stop    go now
    """

    def wants_drain(self) -> bool: ...

    def wants_stop(self) -> bool: ...


class WorkerLoop:
    """
    started_s     host-monotonic second at which the process was started; its bill begins there
    read_joules   cumulative measured joules of this worker, or None where nothing is measured
    """

    def __init__(
        self,
        engine: EngineLike,
        link: Link,
        lifeline: Lifeline,
        *,
        worker_id: str,
        incarnation: int,
        pid: int,
        started_s: float,
        config: OperationsConfig,
        clock: Clock,
        read_joules: Callable[[], float] | None = None,
    ) -> None:
        self._engine = engine
        self._link = link
        self._lifeline = lifeline
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._pid = pid
        self._started_s = started_s
        self._config = config
        self._clock = clock
        self._meter = TimeMeter(started_s)
        self._read_joules = read_joules
        self._cache = CacheReports(worker_id, incarnation)
        self._joules = 0.0
        self._running: set[str] = set()
        self._refusals: list[TokenDelta] = []
        self._num_received = self._num_sent = self._session = 0
        self._held_s = 0.0
        self._is_draining = self._is_news = False
        self._reported_s = started_s
        self._checked_s = started_s
        self._needs_check = False
        self._stats = WorkerStats()

    def run(self) -> None:
        """Serve until drained or stopped. An exception of the engine comes out, after its time was reported."""
        self.begin()
        try:
            while not self.is_over():
                if self.is_busy:
                    self.collect()
                    self.work()
                else:
                    self.wait()
        finally:
            self.end()

    # -- turns: what `run` does again and again, and what the twin does when virtual time comes to it --

    def begin(self) -> None:
        self._meter.started(self._clock.now())
        self._hello(self._started_s)
        self._step_report(())

    def end(self) -> None:
        self._meter.busy(self._clock.now())
        self._report((), self._stats)
        self._link.send(Goodbye(worker_id=self._worker_id, incarnation=self._incarnation))

    @property
    def is_busy(self) -> bool:
        return self._engine.has_work() or bool(self._refusals)

    def collect(self) -> None:
        """Take the messages that are there, between two steps."""
        self._take(self._link.receive(0.0))

    def is_over(self) -> bool:
        if self._lifeline.wants_stop():
            return True
        self._is_draining = self._is_draining or self._lifeline.wants_drain()
        return self._is_draining and not self.is_busy

    def work(self) -> None:
        """One step, if there is still work, and its report: at once when it has news, else when one is due."""
        deltas = self._engine.step() if self._engine.has_work() else []
        self._needs_check = True
        self._meter.busy(self._engine.settled_s(self._clock.now()))
        if deltas or self._refusals or self._is_news or self.patience_s() == 0:
            self._step_report(deltas)

    def wait(self) -> None:
        """One wait for work, which is the only idle time there is."""
        self._meter.busy(self._clock.now())
        messages = self._link.receive(self.patience_s())
        self._meter.idle(self._clock.now())
        self._take(messages)
        self._rest()

    def patience_s(self) -> float:
        """How long to wait for work: until the next heartbeat is due."""
        interval_s = self._config.heartbeat_interval_s
        return min(interval_s, max(0.0, self._reported_s + interval_s - self._clock.now()))

    def _rest(self) -> None:
        """Still nothing to do: say so now and then, and use the time to check the engine's books."""
        if self.is_busy:
            return
        now_s = self._clock.now()
        if self._needs_check and now_s - self._checked_s >= self._config.integrity_interval_s:
            self._engine.check_integrity()
            self._checked_s, self._needs_check = now_s, False
        if now_s - self._reported_s >= self._config.heartbeat_interval_s:
            self._meter.busy(self._clock.now())
            self._step_report(())

    # -- messages --

    def _take(self, messages: Sequence[ToWorker]) -> None:
        if self._link.was_lost() and self._running:
            _log.warning("worker %s: the frontend is gone; %d requests dropped", self._worker_id, len(self._running))
            self._drop_all()
        for message in messages:
            match message:
                case Generate():
                    self._number(message)
                case Abort():
                    self._abort(message.request_id)
                case Introduce():
                    if message.session is None or message.session >= self._session:
                        self._start_over()
                case Drain():
                    self._is_draining = True
                case ReportCache():
                    self._link.send(self._cache.begin(self._engine.open_cache_log()))

    def _number(self, message: Generate) -> None:
        """Take it if it is the next one; a second copy is none, and a gap means that some never came."""
        if message.index is None:
            return self._generate(message.request)
        missing = message.index - self._num_received - 1
        if message.session != self._session:
            return
        if missing > 0:
            _log.error("worker %s: %d message(s) were lost on the way; it starts over", self._worker_id, missing)
            self._start_over()
        elif missing == 0:
            self._generate(message.request)

    def _start_over(self) -> None:
        """A new session: what runs is forgotten on both ends, and what is to run will be sent again."""
        self._drop_all()
        self._held_s = self._engine.held_s  # what nobody will be told is lost, as frames that never came are
        self._session += 1
        self._num_received = self._num_sent = 0
        self._hello(self._reported_s)
        self._is_news = True

    def _generate(self, request: Request) -> None:
        self._num_received += 1
        try:
            if self._is_draining or self._lifeline.wants_drain():
                raise UnavailableError(f"worker {self._worker_id} is draining: retry")
            self._engine.add(request)
        except TokenmillError as error:
            self._refusals.append(
                TokenDelta(
                    request_id=request.request_id,
                    finish_reason=FinishReason.ERROR,
                    error=(error.code, error.message),
                    error_param=error.param,
                )
            )
        else:
            self._running.add(request.request_id)

    def _abort(self, request_id: str) -> None:
        """The engine frees everything at once. Too late is fine: the request may just have ended."""
        if request_id in self._running:
            self._engine.abort(request_id)
            self._running.discard(request_id)

    def _drop_all(self) -> None:
        """Nobody waits for these requests any more."""
        for request_id in sorted(self._running):
            self._abort(request_id)
        self._refusals.clear()

    # -- reports --

    def _hello(self, bill_from_s: float) -> None:
        self._link.send(
            Hello(
                worker_id=self._worker_id,
                incarnation=self._incarnation,
                pid=self._pid,
                started_s=bill_from_s,
                process_started_s=self._started_s,
                card=self._engine.card,
                session=self._session,
            )
        )

    def _step_report(self, deltas: Sequence[TokenDelta]) -> None:
        self._stats = self._engine.stats()
        self._report(deltas, self._stats)

    def _report(self, deltas: Sequence[TokenDelta], stats: WorkerStats) -> None:
        interval = self._meter.take()
        for delta in deltas:
            if delta.finish_reason is not None:
                self._running.discard(delta.request_id)
        self._num_sent += 1
        changes = self._cache.take()
        if changes is not None:
            self._link.send(changes)  # before the frame: what it tells of as computed is in the cache
        held_s = self._engine.held_s
        busy_s = max(0.0, interval.busy_s - (held_s - self._held_s))
        self._held_s = held_s
        self._link.send(
            StepFrame(
                worker_id=self._worker_id,
                incarnation=self._incarnation,
                until_s=interval.until_s,
                busy_s=busy_s,
                idle_s=interval.idle_s,
                startup_s=interval.startup_s,
                unattributed_s=max(0.0, busy_s - sum([delta.seconds for delta in deltas])),
                held_s=held_s,
                session=self._session,
                index=self._num_sent,
                num_received=self._num_received,
                joules=self._take_joules(),
                deltas=(*self._refusals, *deltas),
                stats=stats,
            )
        )
        self._refusals.clear()
        self._is_news = False
        self._reported_s = interval.until_s

    def _take_joules(self) -> float | None:
        """Measured joules since the last report."""
        if self._read_joules is None:
            return None
        before, self._joules = self._joules, self._read_joules()
        return self._joules - before
