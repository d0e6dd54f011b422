"""Compiling beside the step loop: shared jobs, deadline, typed errors for each who waits."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tokenmill.core.errors import BadRequestError, InternalError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.engine.structured.compiler import GrammarCompiler

_WAIT_S = 10.0


class _Backend:
    """Compiles to the grammar's own text, after the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.sources: list[str] = []

    def compile(self, grammar: Grammar) -> Any:
        self.sources.append(grammar.source)
        self.gate.wait(_WAIT_S)
        if grammar.source == "bad":
            raise BadRequestError("bad it is", param=grammar.param)
        if grammar.source == "bug":
            raise RuntimeError("bug it is")
        return f"compiled {grammar.source}"


def _regex(source: str, param: str = "guided_regex") -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, source=source, param=param)


@pytest.fixture
def backend() -> Any:
    made = _Backend()
    yield made
    made.gate.set()


@pytest.fixture
def compiler(backend: _Backend) -> Any:
    made = GrammarCompiler(backend, deadline_s=2.0, max_cached=2)
    yield made
    made.close()


def test_a_grammar_is_there_once_it_is_compiled(backend: _Backend, compiler: GrammarCompiler) -> None:
    pending = compiler.submit(_regex("a"), now_s=100.0)
    assert pending.poll(100.0) is None and pending.poll(101.9) is None
    backend.gate.set()
    assert pending.wait(_WAIT_S)
    assert pending.poll(101.9) == pending.poll(999.0) == "compiled a"


def test_too_slow_is_a_bad_request_and_the_loop_goes_on(backend: _Backend, compiler: GrammarCompiler) -> None:
    pending = compiler.submit(_regex("a"), now_s=100.0)
    with pytest.raises(BadRequestError, match="too long to compile") as caught:
        pending.poll(102.0)
    assert caught.value.param == "guided_regex"
    later = compiler.submit(_regex("a"), now_s=110.0)  # still at it; a new request has its own time
    assert later.poll(111.0) is None
    backend.gate.set()
    assert later.wait(_WAIT_S) and later.poll(111.0) == "compiled a"


def test_requests_with_one_grammar_share_the_work(backend: _Backend, compiler: GrammarCompiler) -> None:
    """S38: many concurrent requests of one schema."""
    pending = [compiler.submit(_regex("a"), now_s=0.0) for _ in range(32)]
    backend.gate.set()
    assert all(one.wait(_WAIT_S) and one.poll(0.0) == "compiled a" for one in pending)
    assert compiler.submit(_regex("a"), now_s=500.0).poll(500.0) == "compiled a"
    assert backend.sources == ["a"]


def test_errors_reach_every_waiter_typed(backend: _Backend, compiler: GrammarCompiler) -> None:
    backend.gate.set()
    first, second = compiler.submit(_regex("bad"), 0.0), compiler.submit(_regex("bad"), 0.0)
    other = compiler.submit(_regex("bad", "response_format"), 0.0)
    for pending, param in ((first, "guided_regex"), (second, "guided_regex"), (other, "response_format")):
        assert pending.wait(_WAIT_S)
        with pytest.raises(BadRequestError, match="bad it is") as caught:
            pending.poll(0.0)
        assert caught.value.param == param
    bug = compiler.submit(_regex("bug"), 0.0)
    assert bug.wait(_WAIT_S)
    with pytest.raises(InternalError, match="bug it is"):
        bug.poll(0.0)


def test_old_grammars_are_forgotten(backend: _Backend, compiler: GrammarCompiler) -> None:
    backend.gate.set()
    for source in "abcab":
        assert compiler.submit(_regex(source), 0.0).wait(_WAIT_S)
    assert backend.sources == list("abcab")


def test_threads_end_when_closed(backend: _Backend) -> None:
    before = set(threading.enumerate())
    compiler = GrammarCompiler(backend, num_threads=3)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 3 and all(thread.daemon for thread in threads)
    compiler.close()
    for thread in threads:
        thread.join(_WAIT_S)
        assert not thread.is_alive()
