"""Structured output over HTTP: every spelling becomes one grammar; faults have their path, before the first byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.chats import CHAT, ask, dispatcher, refusal, says
from tests.api.live import LiveServer, chat_body
from tokenmill.core.errors import BadRequestError
from tokenmill.core.grammar import Grammar, GrammarKind

COMPLETION = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"ä": {"const": 1}}}
SOURCE = json.dumps(SCHEMA, ensure_ascii=False)


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with LiveServer(dispatcher()) as server:
        yield server


@pytest.fixture
def server(shared: LiveServer) -> LiveServer:
    shared.dispatcher.seen.clear()
    shared.dispatcher.error = None
    shared.dispatcher.script = says("{}")
    return shared


def _json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}}


_FORMAT = "response_format.json_schema"
SPELLINGS: list[tuple[dict[str, Any], GrammarKind, str, str]] = [
    ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT, "", "response_format"),
    (_json_schema(SCHEMA, strict=True), GrammarKind.JSON_SCHEMA, SOURCE, f"{_FORMAT}.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, GrammarKind.JSON_OBJECT, "", _FORMAT),
    ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, SOURCE, "guided_json"),
    ({"guided_json": '{"type": "null"}'}, GrammarKind.JSON_SCHEMA, '{"type": "null"}', "guided_json"),
    ({"guided_regex": "[a-z]+"}, GrammarKind.REGEX, "[a-z]+", "guided_regex"),
    ({"guided_choice": ["a", "ß"]}, GrammarKind.CHOICE, '["a", "ß"]', "guided_choice"),
    ({"guided_grammar": 'root ::= "a"'}, GrammarKind.EBNF, 'root ::= "a"', "guided_grammar"),
    ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA, SOURCE, "structured_outputs.json"),
    ({"structured_outputs": {"regex": "a"}}, GrammarKind.REGEX, "a", "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a"]}}, GrammarKind.CHOICE, '["a"]', "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "x"}}, GrammarKind.EBNF, "x", "structured_outputs.grammar"),
    (
        {"structured_outputs": {"json_object": True, "regex": None}},
        GrammarKind.JSON_OBJECT,
        "",
        "structured_outputs.json_object",
    ),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(("fields", "kind", "source", "param"), SPELLINGS, ids=lambda value: str(value)[:40])
def test_every_spelling(
    server: LiveServer, path: str, fields: dict[str, Any], kind: GrammarKind, source: str, param: str
) -> None:
    body = chat_body() if path == CHAT else {"model": "bytes", "prompt": "hi"}
    assert server.post(path, body | fields).status_code == 200
    assert server.dispatcher.seen[-1].grammar == Grammar(kind=kind, source=source, param=param)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "guided_json": None, "structured_outputs": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json": None, "json_object": False, "disable_fallback": False}},
    ],
    ids=str,
)
def test_free_text(server: LiveServer, fields: dict[str, Any]) -> None:
    ask(server, **fields)
    assert server.dispatcher.seen[-1].grammar is None


def test_all_choices_share_the_grammar(server: LiveServer) -> None:
    assert server.post(CHAT, chat_body(n=3, guided_regex="a")).status_code == 200
    assert len({request.grammar for request in server.dispatcher.seen}) == 1 and len(server.dispatcher.seen) == 3


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": "json"}, "invalid_request", "response_format"),
        ({"response_format": {}}, "invalid_request", "response_format"),
        ({"response_format": {"type": 5}}, "invalid_request", "response_format"),
        ({"response_format": {"type": "structural_tag"}}, "unsupported", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "invalid_request", _FORMAT),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "invalid_request", _FORMAT),
        ({"guided_json": 5}, "invalid_request", "guided_json"),
        ({"guided_json": ""}, "invalid_request", "guided_json"),
        ({"guided_json": "a" * 1_000_001}, "invalid_request", "guided_json"),
        ({"guided_regex": ["a"]}, "invalid_request", "guided_regex"),
        ({"guided_regex": ""}, "invalid_request", "guided_regex"),
        ({"guided_choice": []}, "invalid_request", "guided_choice"),
        ({"guided_choice": "a"}, "invalid_request", "guided_choice"),
        ({"guided_choice": ["a", 5]}, "invalid_request", "guided_choice"),
        ({"guided_grammar": {}}, "invalid_request", "guided_grammar"),
        ({"structured_outputs": "json"}, "invalid_request", "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "unsupported", "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": 5}}, "invalid_request", "structured_outputs.json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "invalid_request", "structured_outputs.regex"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "invalid_request", "guided_json"),
        ({"guided_json": {}, "guided_regex": "a"}, "invalid_request", "guided_regex"),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_bad_wishes(server: LiveServer, path: str, fields: dict[str, Any], code: str, param: str) -> None:
    body = chat_body() if path == CHAT else {"model": "bytes", "prompt": "hi"}
    assert refusal(server, body | fields, path) == (code, param)
    assert server.dispatcher.seen == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_fault_that_the_worker_finds_is_a_400_with_its_path(server: LiveServer, is_stream: bool) -> None:
    """Before the first byte, also of a stream."""
    server.dispatcher.error = BadRequestError(
        "a.b is wrong: correct it", param="response_format.json_schema.schema.a.b"
    )
    body = chat_body(**_json_schema({}), stream=is_stream)
    assert refusal(server, body) == ("invalid_request", "response_format.json_schema.schema.a.b")


def test_a_prediction_is_kept_as_ids(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "abc"}, {"type": "text", "text": "def"}]
    for content in ("abcdef", parts):
        ask(server, prediction={"type": "content", "content": content})
        assert bytes(server.dispatcher.seen[-1].prediction_token_ids) == b"abcdef"
    assert refusal(server, chat_body(prediction={"type": "content"})) == ("invalid_request", "prediction")
    assert refusal(server, chat_body(prediction="abc")) == ("invalid_request", "prediction")
