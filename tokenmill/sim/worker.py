"""A worker process on virtual time: the production worker loop over a skipping engine, turned when its time comes.

The loop's own clock stands still while the process waits or computes and is set on when it is turned again; a message
that comes meanwhile cuts a span of steps short. Not responsible for: restarts (the supervisor), the wire (network.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tokenmill.core.clock import Clock
from tokenmill.core.wire import ToFrontend, ToWorker
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.engine.runners.step_times import ScaledStepTime
from tokenmill.engine.skipping_engine import SkippingEngine
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker.loop import WorkerLoop
from tokenmill.sim.events import EventQueue

_FAILED = 1
#: Rounding must not make a wait end before it is over.
_SHORTEST_WAIT_S = 1e-6


class MakeEngine(Protocol):
    def __call__(self, clock: Clock, pace: Callable[[float], None], step_time: StepTime) -> SkippingEngine: ...


class LocalClock:
    """Time as one process sees it: where the loop stands, plus how wrong its host's clock is."""

    def __init__(self, at_s: float, skew_s: float) -> None:
        self.at_s = at_s
        self.skew_s = skew_s

    def now(self) -> float:
        return self.at_s + self.skew_s

    def advance(self, seconds: float) -> None:
        self.at_s += seconds


class _Link:
    """The loop's end of the wire; messages go out when the step that wrote them is over."""

    def __init__(self, clock: LocalClock, queue: EventQueue) -> None:
        self._clock = clock
        self._queue = queue
        self.inbox: list[ToWorker] = []
        self.outbox: list[ToFrontend] = []

    def receive(self, timeout_s: float) -> list[ToWorker]:
        """A wait is over at the time of the world: that is why the loop was turned."""
        self._clock.at_s = self._queue.now()
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, message: ToFrontend) -> None:
        self.outbox.append(message)

    def was_lost(self) -> bool:
        return False

    def close(self, linger_s: float) -> None: ...


class _Lifeline:
    def __init__(self) -> None:
        self.is_drain_wanted = False

    def wants_drain(self) -> bool:
        return self.is_drain_wanted

    def wants_stop(self) -> bool:
        return False


class SimWorker:
    """One life of a worker.

    send      puts its messages on the wire
    on_exit   hears of its end by itself, with the exit code
    skew_s    how wrong its host's clock is
    fails_to_load  whether the disk is broken when the weights are read
    """

    def __init__(
        self,
        queue: EventQueue,
        make_engine: MakeEngine,
        step_time: StepTime,
        *,
        worker_id: str,
        incarnation: int,
        config: OperationsConfig,
        load_s: float,
        skew_s: float,
        fails_to_load: Callable[[], bool],
        send: Callable[[Sequence[ToFrontend]], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._queue = queue
        self._fails_to_load = fails_to_load
        self._send = send
        self._on_exit = on_exit
        self.worker_id, self.incarnation = worker_id, incarnation
        self.clock = LocalClock(queue.now(), skew_s)
        self._step_time = ScaledStepTime(step_time)
        self.engine = make_engine(self.clock, self.clock.advance, self._step_time)
        self._link = _Link(self.clock, queue)
        self._lifeline = _Lifeline()
        self._config = config
        self._loop = WorkerLoop(
            self.engine,
            self._link,
            self._lifeline,
            worker_id=worker_id,
            incarnation=incarnation,
            pid=0,
            started_s=self.clock.now(),
            config=config,
            clock=self.clock,
        )
        self.slowness = 1.0  # of steps that begin from now on
        self.is_alive = True
        self._has_begun = self._is_waiting = False
        self._thaw_s = 0.0
        self._next = queue.after(load_s, self._begin)

    # -- from outside --

    def deliver(self, message: ToWorker) -> None:
        """A message is there. A wait ends; of a span only the step under way is still made."""
        if not self.is_alive:
            return
        self._link.inbox.append(message)
        if self._is_waiting:
            self._queue.cancel(self._next)
            self._wake()
        elif (span := self.engine.span) is not None and span.num_steps > 1:
            skew_s = self.clock.skew_s
            num_steps = span.steps_by(self._queue.now() + skew_s)
            if num_steps < self.engine.num_steps:
                self.engine.num_steps = num_steps
                self._queue.cancel(self._next)
                end_s = max(self._queue.now(), self.clock.at_s + span.elapsed_s(num_steps))
                self._next = self._queue.at(end_s, self._end_step)

    def drain(self) -> None:
        self._lifeline.is_drain_wanted = True
        if self.is_alive and self._is_waiting:
            self._queue.cancel(self._next)
            self._wake()

    def kill(self) -> None:
        """Nothing of a step that was under way ever was."""
        self.is_alive = False
        self._queue.cancel(self._next)

    def fail(self) -> None:
        """Its engine raises: what was spent is reported, and the process ends."""
        if self.is_alive and self._has_begun:
            self._queue.cancel(self._next)
            self.clock.at_s = self._queue.now()
            self._loop.end()
            self._flush()
        self._leave(_FAILED)

    def freeze(self, seconds: float) -> None:
        """It does nothing for a while; messages pile up. The time is its own: busy, if it was."""
        if not self.is_alive:
            return
        self._thaw_s = max(self._thaw_s, self._queue.now() + seconds)

    def _is_frozen(self, turn: Callable[[], None]) -> bool:
        """Come back when it thaws."""
        if self._queue.now() >= self._thaw_s:
            return False
        self._next = self._queue.at(self._thaw_s, turn)
        return True

    def _leave(self, exit_code: int) -> None:
        self.kill()
        self._on_exit(exit_code)

    # -- turns --

    def _begin(self) -> None:
        if self._fails_to_load():
            self._leave(_FAILED)
            return
        self._has_begun = True
        self.clock.at_s = self._queue.now()
        self._loop.begin()
        self._flush()
        self._proceed()

    def _proceed(self) -> None:
        """Start what comes next: a span of steps, or a wait."""
        self._is_waiting = False
        while self.is_alive:
            if self._loop.is_over():
                self._loop.end()
                self._flush()
                self._leave(0)
            elif not self._loop.is_busy:
                self._is_waiting = True
                patience_s = max(_SHORTEST_WAIT_S, self._loop.patience_s())
                self._next = self._queue.at(self._queue.now() + patience_s, self._wake)
                return
            else:
                self._loop.collect()
                self._step_time.factor = self.slowness
                span = self.engine.begin()
                if span is not None:
                    end_s = self.clock.at_s + span.elapsed_s(self.engine.num_steps)
                    self._next = self._queue.at(max(end_s, self._queue.now()), self._end_step)
                    self._flush()
                    return
                self._loop.work()
                self._flush()

    def _end_step(self) -> None:
        if self._is_frozen(self._end_step):
            return
        self._loop.work()
        self._flush()
        self.clock.at_s = self._queue.now()
        self._proceed()

    def _wake(self) -> None:
        if self._is_frozen(self._wake):
            return
        self._is_waiting = False
        self._loop.wait()
        self._flush()
        self._proceed()

    def _flush(self) -> None:
        if self._link.outbox:
            messages, self._link.outbox = self._link.outbox, []
            self._send(messages)
