"""The overlapped loop: what follows step n (bills, deltas, frames, new requests, planning) is done while n + 1 runs.

Plain loop:       plan n, run n, take over n, tell n, plan n + 1, …
Overlapped loop:  launch n + 1, then tell n; while n + 1 runs the caller sends n's tokens and takes requests, and
                  n + 2 is planned; when n + 1 has ended its tokens are taken over and n + 2 is launched.

A plan is launched only when the tokens before it are known, so nothing is computed for a sequence that has ended, and
both loops run the same steps on the same tokens: their outputs are equal. Requests that arrive while a step runs are
in the next plan, as in the plain loop. A runner gains when its work releases the interpreter lock.
Not responsible for: what a step is (engine.py), drafts (refused at load).
"""

from __future__ import annotations

import queue
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from tokenmill.core.clock import Clock
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import Request, TokenDelta
from tokenmill.core.step import StepPlan, StepResult
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import GRAMMAR_WAIT_S, Engine
from tokenmill.engine.runners.base import Runner


@dataclass(slots=True)
class _Flight:
    """A step that runs. `ended` is set last, by the runner's thread."""

    plan: StepPlan
    start_s: float
    ended: threading.Event
    end_s: float = 0.0
    result: StepResult | None = None
    error: BaseException | None = None


def engine_class(config: EngineConfig) -> type[Engine]:
    """The loop that was asked for. Drafts are planned with what came of the last ones: nothing to plan ahead."""
    if config.overlap and config.speculative_config is not None:
        raise ConfigError("overlap and speculative_config exclude each other: turn one of them off")
    return OverlappedEngine if config.overlap else Engine


class OverlappedEngine(Engine):
    """One more thread, which runs steps; all else stays with the caller's. `step` returns the deltas of the step
    before the one it launches: [] once at the beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flight: _Flight | None = None
        self._landed: list[TokenDelta] = []  # of a step that had to end before its turn
        self._launches: queue.SimpleQueue[_Flight | None] = queue.SimpleQueue()
        arguments = (self._launches, self._runner, self._clock)
        threading.Thread(target=_run_flights, args=arguments, name="steps", daemon=True).start()
        weakref.finalize(self, self._launches.put, None)

    def step(self) -> list[TokenDelta]:
        told, self._landed = self._landed, []
        told += self._take_grammars(self._clock.now())
        flight = self._flight
        if flight is None:
            is_running = self._launch(self._scheduler.schedule(), self._clock.now())
            if not is_running and self._grammars is not None and not told:
                self._grammars.wait(GRAMMAR_WAIT_S)
            return told
        ahead = self._scheduler.plan_ahead(flight.plan)
        result = self._wait(flight)
        sequences = self._take_over(flight.plan, result)
        self._launch(self._scheduler.confirm(ahead) or self._scheduler.schedule(), flight.end_s)
        return told + self._deltas(flight.plan, result, sequences, flight.start_s, flight.end_s)

    def _launch(self, plan: StepPlan | None, start_s: float) -> bool:
        """`start_s` is the end of the step before it, if there is one: no time between them is nobody's."""
        self._flight = None
        if plan is not None:
            self._flight = _Flight(plan, start_s, threading.Event())
            self._launches.put(self._flight)
        return plan is not None

    def _wait(self, flight: _Flight) -> StepResult:
        flight.ended.wait()
        self._flight = None
        if flight.error is not None:
            raise flight.error
        assert flight.result is not None
        return flight.result

    def _land(self) -> None:
        """Between two steps, as the plain loop is whenever it is called: the step that runs ends first."""
        if self._flight is not None:
            flight = self._flight
            result = self._wait(flight)
            sequences = self._take_over(flight.plan, result)
            self._landed += self._deltas(flight.plan, result, sequences, flight.start_s, flight.end_s)

    # -- calls between steps --

    def abort(self, request_id: str) -> bool:
        """As the plain loop's; a request in the step that runs is dropped when that has ended, its token untold."""
        if self._flight is None or all(s.request_id != request_id for s in self._flight.plan.sequences):
            return super().abort(request_id)
        self._land()
        super().abort(request_id)  # it may just have ended
        self._landed = [delta for delta in self._landed if delta.request_id != request_id]
        return True

    def add(self, request: Request) -> None:
        if self._is_leaving(request.request_id):
            self._land()
        super().add(request)

    def _is_leaving(self, request_id: str) -> bool:
        """Its last step runs: the plain loop would take the id again."""
        return self._flight is not None and self._scheduler.get(request_id) is not None

    def has_work(self) -> bool:
        return self._flight is not None or bool(self._landed) or super().has_work()

    def settled_s(self, now_s: float) -> float:
        return now_s if self._flight is None else self._flight.start_s

    def clear_cache(self) -> None:
        self._land()
        super().clear_cache()

    def check_integrity(self) -> None:
        self._land()
        super().check_integrity()


def _run_flights(launches: queue.SimpleQueue[_Flight | None], runner: Runner, clock: Clock) -> None:
    """The thread of steps, until None comes; it does not hold the engine, which may go."""
    while (flight := launches.get()) is not None:
        try:
            flight.result = runner.run(flight.plan)
        except BaseException as error:
            flight.error = error
        flight.end_s = clock.now()
        flight.ended.set()
