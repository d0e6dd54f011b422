"""Structured output and tools from the HTTP body to the drawn tokens and back: a real engine on a random model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.chats import joined, tool
from tests.structured.door import CHAT, EngineDoor, chat
from tests.structured.engines import byte_engine, write_byte_llama
from tests.structured.helpers import PERSON, object_of
from tests.structured.validator import problem

pytestmark = pytest.mark.requires_llguidance
BOUNDED = object_of(x={"enum": ["red", 'b"lue']}, n={"type": "integer", "minimum": 0, "maximum": 99})


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineDoor]:
    path = write_byte_llama(tmp_path_factory.mktemp("bytes"))
    engine = byte_engine(path, tool_call_parser="hermes", grammar_deadline_s=20.0)
    with EngineDoor(engine) as door:
        yield door
    assert not engine.has_work()


def _schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _answer(door: EngineDoor, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Its choices; the stream of the same seed says the same."""
    response = door.post(CHAT, body)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    for choice, streamed in zip(choices, joined(door.stream(CHAT, body)), strict=True):
        made = choice["message"]
        assert streamed.get("content", "") == (made["content"] or "")
        assert streamed["finish_reason"] == choice["finish_reason"]
        whole = [(c["function"]["name"], c["function"]["arguments"]) for c in made.get("tool_calls", ())]
        assert [(name, arguments) for _, name, arguments in streamed["calls"]] == whole
    return choices


def test_answers_in_a_schema(door: EngineDoor) -> None:
    choices = _answer(door, chat(response_format=_schema(BOUNDED), n=4, logprobs=True, top_logprobs=2))
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        assert problem(json.loads(choice["message"]["content"]), BOUNDED) is None
        assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert len({choice["message"]["content"] for choice in choices}) > 1


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[0-9]{3}-[a-z]{2}"}, "[0-9]{3}-[a-z]{2}"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_grammar": 'root ::= "a" ("b" | "c") "d"'}, "a[bc]d"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"structured_outputs": {"regex": "x{4}"}}, "xxxx"),
        ({"response_format": _schema({"const": 5})}, "5"),
    ],
    ids=str,
)
def test_spellings_are_enforced_on_both_routes(door: EngineDoor, fields: dict[str, Any], pattern: str) -> None:
    (choice,) = _answer(door, chat(**fields))
    assert re.fullmatch(pattern, choice["message"]["content"])
    body = {"prompt": "hi", "max_tokens": 50, "seed": 1, **fields}
    assert re.fullmatch(pattern, door.post("/v1/completions", body).json()["choices"][0]["text"])


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "paint"}}], ids=["required", "named"]
)
def test_calls_that_must_be_made_are_made(door: EngineDoor, choice: Any) -> None:
    tools = [tool("get", BOUNDED), tool("paint", BOUNDED)]
    answers = _answer(door, chat(tools=tools, tool_choice=choice, parallel_tool_calls=False, n=4))
    names = set()
    for answer in answers:
        assert answer["finish_reason"] == "tool_calls"
        (call,) = answer["message"]["tool_calls"]
        names.add(call["function"]["name"])
        assert problem(json.loads(call["function"]["arguments"]), BOUNDED) is None
    assert names <= {"get", "paint"} and (choice == "required" or names == {"paint"})


def test_several_required_calls(door: EngineDoor) -> None:
    """A model that likes newlines better than the end goes on calling; every call is whole or the last."""
    body = chat(tools=[tool("get", BOUNDED)], tool_choice="required", max_tokens=400, logit_bias={"10": 100})
    (choice,) = _answer(door, body)
    made = choice["message"]["tool_calls"]
    assert len(made) > 1 and choice["finish_reason"] == "length"
    assert all(problem(json.loads(call["function"]["arguments"]), BOUNDED) is None for call in made[:-1])


def test_strict_tools_under_a_free_choice(door: EngineDoor) -> None:
    """The model is led to open a call; what follows keeps to the schema."""
    opening = '<tool_call>\n{"name": "get", "arguments": {"x": '
    bias = {str(byte): 20 for byte in opening.encode()[:1]}
    body = chat(tools=[tool("get", BOUNDED, strict=True)], logit_bias=bias, temperature=0.0, max_tokens=60)
    (choice,) = _answer(door, body)
    assert "tool_calls" not in choice["message"] or choice["finish_reason"] in ("tool_calls", "length")
    assert "<tool_call>" not in (choice["message"]["content"] or "")


def test_calls_or_the_format(door: EngineDoor) -> None:
    """Beside tools the answer still keeps to its format: each choice is one or the other."""
    body = chat(tools=[tool("get", BOUNDED)], response_format=_schema(BOUNDED), n=6)
    for choice in _answer(door, body):
        if choice["message"].get("tool_calls"):
            assert choice["message"]["content"] is None
        else:
            assert problem(json.loads(choice["message"]["content"]), BOUNDED) is None


def test_an_answer_cut_by_its_limit_is_a_beginning(door: EngineDoor) -> None:
    (whole,) = _answer(door, chat(response_format=_schema(PERSON), max_tokens=400))
    (cut,) = _answer(door, chat(response_format=_schema(PERSON), max_tokens=9))
    assert cut["finish_reason"] == "length" and whole["message"]["content"].startswith(cut["message"]["content"])


_ENDLESS = {"$ref": "#/$defs/a", "$defs": {"a": object_of(next={"$ref": "#/$defs/a"})}}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": _schema({"type": "x"})}, "response_format.json_schema.schema.type"),
        ({"response_format": _schema(_ENDLESS)}, "response_format.json_schema.schema"),
        ({"response_format": _schema(False)}, "response_format.json_schema.schema"),
        (
            {"response_format": _schema({"type": "integer", "minimum": 5, "maximum": 1})},
            "response_format.json_schema.schema.minimum",
        ),
        ({"guided_json": '{"type": '}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar"),
        (
            {"tools": [tool("f", {"type": "object", "properties": {"a": {"$ref": "#/x"}}})], "tool_choice": "required"},
            "tools[0].function.parameters.properties.a.$ref",
        ),
    ],
    ids=lambda value: str(value)[:70],
)
def test_faults_found_by_the_worker(door: EngineDoor, fields: dict[str, Any], param: str, is_stream: bool) -> None:
    response = door.post(CHAT, chat(**fields, stream=is_stream))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] in ("invalid_request", "unsupported") and error["param"].startswith(param), error
    assert error["message"]


def test_many_at_once_with_a_shared_prefix(door: EngineDoor) -> None:
    """S38 over HTTP: 32 concurrent answers, each with its own id; bad ones between them hurt nobody."""
    prefix = "shared " * 20
    bodies = [
        chat(prefix, response_format=_schema(object_of(id={"const": f"id-{i}"})), seed=i, n=1 + i % 2)
        for i in range(32)
    ]
    bodies.insert(7, chat(prefix, response_format=_schema({"type": "x"})))
    answers = door.post_all(CHAT, bodies)
    assert answers.pop(7).status_code == 400
    for i, answer in enumerate(answers):
        assert answer.status_code == 200, answer.text
        for choice in answer.json()["choices"]:
            assert json.loads(choice["message"]["content"]) == {"id": f"id-{i}"}
