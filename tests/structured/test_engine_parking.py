"""Requests that wait for their grammar, in an engine that counts: nobody else waits, and nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.structured.engines import BYTES, finish, request, run
from tests.structured.helpers import GRAMMARS, PERSON, json_schema
from tests.structured.validator import is_valid
from tokenmill.core.clock import ManualClock
from tokenmill.core.errors import BadRequestError, CapabilityError, ConfigError
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.core.request import FinishReason
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.simulated import simulated_engine
from tokenmill.engine.structured import base

pytestmark = pytest.mark.requires_llguidance


def counting_engine(**settings: Any) -> Engine:
    clock = ManualClock()
    return simulated_engine(
        EngineConfig(**settings), clock=clock, pace=clock.advance, tokenizer_path=str(BYTES), kv_tokens=4096
    )


class SlowBackend:
    """Compiles when the test says so."""

    def __init__(self, inner: base.GrammarBackend, gate: threading.Event) -> None:
        self._inner = inner
        self._gate = gate

    def compile(self, grammar: Grammar) -> base.CompiledGrammar:
        assert self._gate.wait(30)
        return self._inner.compile(grammar)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Closed: no grammar is compiled."""
    gate = threading.Event()
    load = base.GRAMMAR_BACKENDS.load
    monkeypatch.setattr(
        base.GRAMMAR_BACKENDS, "load", lambda name: lambda *args: SlowBackend(load("llguidance")(*args), gate)
    )
    yield gate
    gate.set()


def test_an_answer_counts_up_along_its_grammar() -> None:
    (output,) = run(counting_engine(), request("a", GRAMMARS["person"])).values()
    assert output.finish_reason is FinishReason.STOP and is_valid(output.text, PERSON)


def test_others_run_while_a_grammar_is_compiled(gate: threading.Event) -> None:
    engine = counting_engine()
    engine.add(request("waits", GRAMMARS["choice"]))
    engine.add(request("runs", max_tokens=5))
    names = set()
    while "runs" not in names:
        names |= {delta.request_id for delta in engine.step() if delta.finish_reason is not None}
    assert engine.has_work() and engine.stats().num_waiting == 1 and engine.stats().num_running == 0
    assert engine.step() == [] and engine.has_work()
    gate.set()
    assert finish(engine, "waits")["waits"].text in json.loads(GRAMMARS["choice"].source)
    assert engine.stats().num_waiting == 0


def test_a_waiting_request_can_be_aborted(gate: threading.Event) -> None:
    engine = counting_engine()
    engine.add(request("a", GRAMMARS["choice"]))
    with pytest.raises(BadRequestError, match="in use"):
        engine.add(request("a"))
    assert engine.abort("a") and not engine.abort("a")
    assert not engine.has_work() and engine.step() == []
    gate.set()
    assert run(engine, request("a", GRAMMARS["choice"]))["a"].finish_reason is FinishReason.STOP
    engine.check_integrity()


def test_a_grammar_that_compiles_too_long_is_refused_before_the_first_byte(gate: threading.Event) -> None:
    clock = ManualClock()
    engine = simulated_engine(
        EngineConfig(grammar_deadline_s=2.0), clock=clock, pace=clock.advance, tokenizer_path=str(BYTES)
    )
    engine.add(request("a", GRAMMARS["choice"]))
    for _ in range(1000):
        assert engine.step() == []
        if engine._grammars is not None and all(p.pending is not None for p in engine._grammars._parked.values()):
            break
    clock.advance(2.1)
    (delta,) = engine.step()
    assert delta.finish_reason is FinishReason.ERROR and delta.token_ids == () and delta.error is not None
    assert delta.error[0] == "invalid_request" and "too long" in delta.error[1]
    assert delta.error_param == "response_format" and not engine.has_work()


def test_a_wrong_grammar_ends_its_request_and_no_other() -> None:
    engine = counting_engine()
    bad = json_schema({"type": "object", "properties": {"a": {"type": "strange"}}}, param="here")
    outputs = run(engine, request("bad", bad), request("good", GRAMMARS["choice"]), request("free", max_tokens=4))
    assert outputs["bad"].error_param == "here.properties.a.type" and outputs["bad"].num_deltas == 1
    assert outputs["bad"].error is not None and outputs["bad"].error[0] == BadRequestError.code
    assert outputs["good"].finish_reason is FinishReason.STOP
    assert outputs["free"].finish_reason is FinishReason.LENGTH


def test_what_can_be_seen_at_once_is_refused_at_once() -> None:
    engine = counting_engine()
    with pytest.raises(BadRequestError, match="guided_regex is empty"):
        engine.add(request("a", Grammar(kind=GrammarKind.REGEX, param="guided_regex")))
    assert not engine.has_work()


def test_without_a_tokenizer_there_are_no_grammars() -> None:
    engine = simulated_engine(EngineConfig(), pace=lambda _: None)
    (output,) = run(engine, request("a", GRAMMARS["choice"])).values()
    assert output.error is not None and output.error[0] == CapabilityError.code


def test_an_unknown_backend_or_parser_is_refused_at_load() -> None:
    for setting in ("grammar_backend", "tool_call_parser", "reasoning_parser", "chat_encoding"):
        with pytest.raises(ConfigError, match="nothing"):
            counting_engine(**{setting: "nothing"})


def test_a_backend_that_cannot_be_opened_is_the_answer_to_every_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("no such package")

    engine = counting_engine()
    monkeypatch.setattr(base.GRAMMAR_BACKENDS, "load", broken)
    for name in "ab":
        (output,) = run(engine, request(name, GRAMMARS["choice"])).values()
        assert output.error is not None and output.error[0] == CapabilityError.code
        assert "not installed" in output.error[1]
    assert run(engine, request("c", max_tokens=2))["c"].finish_reason is FinishReason.LENGTH


def test_order_is_that_of_arrival_once_grammars_are_there(gate: threading.Event) -> None:
    """A request that waited for its grammar has its place in the queue by arrival, not by when it was ready."""
    engine = counting_engine(max_num_seqs=1)
    engine.add(request("first", GRAMMARS["choice"]))
    engine.add(request("runs", max_tokens=3))
    engine.add(request("last", max_tokens=3))
    engine.step()
    gate.set()
    ended = []
    while engine.has_work():
        ended += [delta.request_id for delta in engine.step() if delta.finish_reason is not None]
        if engine._grammars is not None and engine._grammars:
            engine._grammars.wait(5)
    assert ended == ["runs", "first", "last"]
