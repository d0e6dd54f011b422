"""Compiles grammars beside the step loop: jobs in threads, polled by the loop, given up at a deadline. Torch-free.

One job per grammar text, however many requests wait for it. Time is passed in. Not responsible for any queue of
requests.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict

from tokenmill.core.errors import BadRequestError, InternalError, TokenmillError
from tokenmill.core.grammar import Grammar
from tokenmill.engine.structured.base import CompiledGrammar, GrammarBackend

DEFAULT_DEADLINE_S = 5.0
_NUM_THREADS = 2
_MAX_CACHED = 256


class _Job:
    """Written by one thread, read by all once `is_done` is set."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.is_done = threading.Event()
        self.compiled: CompiledGrammar | None = None
        self.error: Exception | None = None

    def run(self, backend: GrammarBackend) -> None:
        try:
            self.compiled = backend.compile(self.grammar)
        except Exception as error:
            self.error = error
        finally:
            self.is_done.set()


class PendingGrammar:
    """One request's wait for its grammar."""

    def __init__(self, job: _Job, grammar: Grammar, deadline_s: float) -> None:
        self._job = job
        self._grammar = grammar
        self._deadline_s = deadline_s

    def poll(self, now_s: float) -> CompiledGrammar | None:
        """The grammar, or None while it is being compiled. BadRequestError: it is wrong, or took too long."""
        if self._job.is_done.is_set():
            return self._result()
        if now_s >= self._deadline_s:
            raise BadRequestError(
                f"{self._grammar.param} took too long to compile: make it smaller, or its repetitions shorter",
                param=self._grammar.param,
            )
        return None

    def wait(self, timeout_s: float) -> bool:
        """Block until it is done or the time is over; for callers outside a step loop. True: done."""
        return self._job.is_done.wait(timeout_s)

    def _result(self) -> CompiledGrammar:
        error = self._job.error
        if isinstance(error, TokenmillError):
            raise type(error)(error.message, param=error.param)  # its own traceback for each who waits
        if error is not None:
            raise InternalError(f"compiling {self._grammar.param} failed: {error}") from error
        assert self._job.compiled is not None, "a done job has a result"
        return self._job.compiled


class GrammarCompiler:
    """Threads are daemons: a grammar that never compiles must not keep the process alive."""

    def __init__(
        self,
        backend: GrammarBackend,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        num_threads: int = _NUM_THREADS,
        max_cached: int = _MAX_CACHED,
    ) -> None:
        self._backend = backend
        self._deadline_s = deadline_s
        self._max_cached = max_cached
        self._jobs: OrderedDict[tuple[str, str, str], _Job] = OrderedDict()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"grammar-{i}", daemon=True) for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, grammar: Grammar, now_s: float) -> PendingGrammar:
        """Start compiling (or join who already does); call from one thread."""
        key = (grammar.kind, grammar.source, grammar.param)
        job = self._jobs.get(key)
        if job is None:
            job = _Job(grammar)
            self._jobs[key] = job
            self._queue.put(job)
        self._jobs.move_to_end(key)
        while len(self._jobs) > self._max_cached:
            self._jobs.popitem(last=False)
        return PendingGrammar(job, grammar, now_s + self._deadline_s)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run(self._backend)

    def close(self) -> None:
        """No more jobs; threads end after the one they are at."""
        for _ in self._threads:
            self._queue.put(None)
