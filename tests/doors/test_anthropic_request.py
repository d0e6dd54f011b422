"""From a Messages body to a chat request: what each field becomes, and what is refused with which path."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.api.anthropic.request import to_chat
from tokenmill.api.anthropic.types import MessagesRequest
from tokenmill.api.openai_types import ChatRequest
from tokenmill.api.retell import retell
from tokenmill.core.errors import BadRequestError, TokenmillError

TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Öl"}}


def chat(*turns: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    told = [{"role": role, "content": content} for role, content in (turns or (("user", "hi"),))]
    body = MessagesRequest.model_validate({"model": "m", "max_tokens": 9, "messages": told} | fields)
    result = to_chat(body).fields
    ChatRequest.model_validate(result)
    return result


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def test_plain() -> None:
    assert chat() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "thinking": False,
    }


def test_system_as_text_and_as_blocks() -> None:
    for system in ("one\ntwo", [text("one"), text("two")]):
        assert chat(system=system)["messages"][0] == {"role": "system", "content": "one\ntwo"}


def test_tools_round_trip() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("sun")], "is_error": False}
    told = chat(
        ("user", [text("weather?")]),
        ("assistant", [thinking, {"type": "redacted_thinking", "data": "x"}, text("Looking."), USE]),
        ("user", [result, text("and?")]),
        tools=[TOOL],
    )
    assert told["messages"] == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": "Looking.",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Öl"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "user", "content": "and?"},
    ]
    function = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
    assert told["tools"] == [{"type": "function", "function": function}]


def test_turns_of_one_role_are_one() -> None:
    told = chat(("user", "a"), ("user", [text("b"), text("c")]), ("assistant", "d"), ("user", "e"))
    assert [message["content"] for message in told["messages"]] == ["a\nb\nc", "d", "e"]


@pytest.mark.parametrize(
    ("last", "continues"),
    [(("assistant", "The answer is ("), True), (("assistant", ""), False), (("assistant", [USE]), False)],
)
def test_a_last_turn_of_the_assistant_is_continued(last: tuple[str, Any], continues: bool) -> None:
    assert chat(("user", "x"), last).get("continue_final_message", False) is continues


@pytest.mark.parametrize(
    ("choice", "told", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, None),
    ],
)
def test_tool_choice(choice: dict[str, Any], told: Any, parallel: bool | None) -> None:
    fields = chat(tools=[TOOL], tool_choice=choice)
    assert fields["tool_choice"] == told and fields.get("parallel_tool_calls") is parallel


def test_the_other_fields() -> None:
    told = chat(
        stop_sequences=["END"],
        top_k=5,
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 2000},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        seed=3,
        stream=True,
        stop=["ignored"],
        service_tier="auto",
    )
    assert told["stop"] == ["END"] and told["top_k"] == 5 and told["user"] == "u" and told["seed"] == 3
    assert told["thinking"] is True
    assert told["reasoning_effort"] == "high" and told["stream"] is True
    schema = {"name": "output", "strict": True, "schema": {"type": "object"}}
    assert told["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert "service_tier" not in told


def test_template_variables_of_the_client() -> None:
    told = chat(chat_template_kwargs={"x": 1})
    assert told["chat_template_kwargs"] == {"x": 1} and told["thinking"] is False


@pytest.mark.parametrize(
    ("turns", "fields", "code", "param"),
    [
        ([("user", "")], {}, "invalid_request", "messages[0].content"),
        ([("user", [])], {}, "invalid_request", "messages[0].content"),
        ([("user", None)], {}, "invalid_request", "messages[0].content"),
        ([("user", ["x"])], {}, "invalid_request", "messages[0].content[0]"),
        ([("user", [{"type": "image", "source": {}}])], {}, "unsupported", "messages[0].content[0]"),
        ([("user", [USE])], {}, "unsupported", "messages[0].content[0]"),
        ([("user", [{"type": "text", "text": 5}])], {}, "invalid_request", "messages[0].content[0].text"),
        ([("user", [{"type": "tool_result"}])], {}, "invalid_request", "messages[0].content[0].tool_use_id"),
        ([("user", [{"type": "tool_result", "tool_use_id": "t", "content": 5}])], {}, "invalid_request",
         "messages[0].content[0].content"),
        ([("user", [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}])], {}, "unsupported",
         "messages[0].content[0].content[0]"),
        ([("user", "x"), ("assistant", [USE | {"input": "{}"}])], {}, "invalid_request",
         "messages[1].content[0].input"),
        ([("user", "x")], {"system": [{"type": "image"}]}, "unsupported", "system[0]"),
        ([("user", "x")], {"system": [5]}, "invalid_request", "system[0]"),
        ([("user", "x")], {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "unsupported", "tools[0].type"),
        ([("user", "x")], {"output_config": {"format": {"type": "xml"}}}, "unsupported", "output_config.format"),
    ],
)  # fmt: skip
def test_bad_input(turns: list[tuple[str, Any]], fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(TokenmillError) as caught:
        chat(*turns, **fields)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("messages[0].content", "system"),
        ("messages[1].content", "messages[0].content"),
        ("messages[2].tool_calls[0].function.name", "messages[1].content[0].name"),
        ("messages[3]", "messages[2].content[0]"),
        ("stop", "stop_sequences"),
        ("tools[0].function.parameters.x", "tools[0].input_schema.x"),
        ("tools[0].function.name", "tools[0].name"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_faults_are_told_with_the_path_of_the_clients_body(path: str, told: str) -> None:
    turns = [("user", "x"), ("assistant", [USE]), ("user", [{"type": "tool_result", "tool_use_id": "t1"}])]
    messages = [{"role": role, "content": content} for role, content in turns]
    body = {"max_tokens": 1, "messages": messages, "system": "s", "tools": [TOOL]}
    error = BadRequestError(f"{path} is bad", param=path)
    retell(error, to_chat(MessagesRequest.model_validate(body)).paths)
    assert error.param == told and error.message == f"{told} is bad"
