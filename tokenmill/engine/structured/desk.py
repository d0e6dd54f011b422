"""Requests that wait for their grammar, outside every queue of the scheduler; and the compiler, opened by the first.

Torch-free. Not responsible for: compiling (compiler.py), what a grammar does to a sequence (sequence_grammar.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tokenmill.core.errors import InternalError, TokenmillError
from tokenmill.core.grammar import Grammar
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.structured.compiler import GrammarCompiler, PendingGrammar
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar


@dataclass(slots=True)
class _Parked:
    """`pending` is None while the compiler is being opened."""

    sequence: Sequence
    grammar: Grammar
    pending: PendingGrammar | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A sequence that waits no longer: it has its grammar, or its request is wrong."""

    sequence: Sequence
    error: TokenmillError | None = None


class GrammarDesk:
    """One engine's; not thread-safe.

    open_compiler  reads the vocabulary, which takes its time: called once, in a thread, when a first grammar comes. A
                   typed error of it is the answer to every request with a grammar
    """

    def __init__(self, open_compiler: Callable[[], GrammarCompiler]) -> None:
        self._opening = _Opening(open_compiler)
        self._parked: dict[str, _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._parked

    def park(self, sequence: Sequence, grammar: Grammar) -> None:
        """Keep it until `poll` gives it back. Deadlines begin when the compiler is there."""
        self._opening.start()
        self._parked[sequence.request_id] = _Parked(sequence, grammar)

    def drop(self, request_id: str) -> bool:
        """Forget a request; what is being compiled is of use to the next who asks for it."""
        return self._parked.pop(request_id, None) is not None

    def poll(self, now_s: float) -> list[Ready]:
        """Those that wait no longer, in the order they came; their grammars are set."""
        if not self._parked or not self._opening.is_done:
            return []
        ready = [one for parked in self._parked.values() if (one := self._look(parked, now_s)) is not None]
        for one in ready:
            del self._parked[one.sequence.request_id]
        return ready

    def _look(self, parked: _Parked, now_s: float) -> Ready | None:
        try:
            if parked.pending is None:
                parked.pending = self._opening.compiler().submit(parked.grammar, now_s)
            compiled = parked.pending.poll(now_s)
        except TokenmillError as error:
            return Ready(parked.sequence, error)
        if compiled is None:
            return None
        grammar = SequenceGrammar(compiled, parked.grammar.start_after)
        grammar.commit(parked.sequence.request.output_token_ids)
        parked.sequence.grammar = grammar
        return Ready(parked.sequence)

    def wait(self, timeout_s: float) -> None:
        """For an engine with nothing else to do: block until something may have changed, or the time is over."""
        first = next(iter(self._parked.values()), None)
        if first is None:
            return
        if first.pending is None:
            self._opening.wait(timeout_s)
        else:
            first.pending.wait(timeout_s)


class _Opening:
    """Written by its thread, read by all once it is done."""

    def __init__(self, open_compiler: Callable[[], GrammarCompiler]) -> None:
        self._open = open_compiler
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._compiler: GrammarCompiler | None = None
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammar-open", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._compiler = self._open()
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout_s: float) -> None:
        self._done.wait(timeout_s)

    def compiler(self) -> GrammarCompiler:
        if isinstance(self._error, TokenmillError):
            raise type(self._error)(self._error.message, param=self._error.param)
        if self._error is not None:
            raise InternalError(f"the grammar compiler cannot be opened: {self._error}") from self._error
        assert self._compiler is not None, "done without an error"
        return self._compiler
