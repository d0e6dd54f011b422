"""Structured output with drafts: the mask of every slot, roll back of what did not stay, ends inside a step."""

from __future__ import annotations

import pytest

from tests.speculative import oracle
from tests.structured.engines import byte_engine, request, run, write_byte_llama
from tests.structured.helpers import PERSON, json_schema
from tokenmill.core.grammar import Grammar, GrammarKind
from tokenmill.core.request import FinishReason
from tokenmill.engine.speculative.config import SpeculativeConfig

pytestmark = pytest.mark.requires_llguidance
REGEX = Grammar(kind=GrammarKind.REGEX, source="(ab|cd){3,20}x")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_byte_llama(tmp_path_factory.mktemp("bytes"))


def engine_with(checkpoint, method, **more):
    config = SpeculativeConfig.parse({"method": method, "num_speculative_tokens": 5, "adaptive": False, **more})
    return byte_engine(checkpoint, speculative_config=config)


def requests_of():
    schema = json_schema(PERSON)
    return [
        request("regex", REGEX, prompt=b"ab ab: "),
        request("drawn", REGEX, prompt=b"cd cd cd: ", temperature=1.2, seed=3, logprobs=2),
        request("schema", schema, prompt=b"A person: ", temperature=0.0, max_tokens=200),
        request("cut", schema, prompt=b"Somebody: ", temperature=0.8, seed=5, max_tokens=37),
        request("free", None, prompt=b"aaaaaaaaaaaa", temperature=0.0, max_tokens=30),
    ]


def said(outputs):
    return {name: (o.token_ids, o.logprobs, o.finish_reason, o.error) for name, o in outputs.items()}


@pytest.mark.parametrize("method", ["oracle", "ngram", "draft_model"])
def test_same_text_as_without_drafts(checkpoint, method, monkeypatch):
    """Drafts right for a while, then illegal ones; a small model that drafts under the mask."""
    plain = run(byte_engine(checkpoint), *requests_of())
    assert {o.finish_reason for o in plain.values()} >= {FinishReason.STOP, FinishReason.LENGTH}
    for one in requests_of():
        oracle.TRUTH[tuple(one.prompt_token_ids)] = plain[one.request_id].token_ids
    monkeypatch.setattr(oracle, "NUM_RIGHT", [3, 0, 9, 1])
    more = {"draft_model": {"model": str(checkpoint)}, "ngram": {"prompt_lookup_min": 1}}.get(method, {})
    engine = engine_with(checkpoint, method, **more)
    for _ in range(2):
        assert said(run(engine, *requests_of())) == said(plain)
    assert engine._scheduler.drafts.num_accepted > 20


def test_a_drafter_keeps_to_the_grammar(checkpoint):
    """The target as its own draft model, greedy: with the mask in every slot each of its drafts stays."""
    engine = engine_with(checkpoint, "draft_model", model=str(checkpoint))
    greedy = [
        request("regex", REGEX, prompt=b"ab: ", temperature=0.0),
        request("schema", json_schema(PERSON), temperature=0.0, max_tokens=150),
    ]
    run(engine, *greedy)
    drafts = engine._scheduler.drafts
    assert drafts.num_tokens > 50
    assert drafts.num_tokens - drafts.num_accepted <= 2, "but the rows of end tokens: nothing is drawn behind them"
