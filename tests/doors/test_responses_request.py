"""From a Responses body to a chat request: what each field becomes, and what is refused with which path."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.api.openai_types import ChatRequest
from tokenmill.api.responses.items import read_input
from tokenmill.api.responses.request import to_chat
from tokenmill.api.responses.types import ResponsesRequest
from tokenmill.api.retell import retell, retelling
from tokenmill.core.errors import BadRequestError, TokenmillError

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def chat(history: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    body = ResponsesRequest.model_validate({"input": "hi"} | fields)
    told = to_chat(body, history or [], read_input(body.input)).fields
    ChatRequest.model_validate(told)
    return told


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return chat(input=list(items), **fields)["messages"]


def call(name: str = "f", call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments}


def test_text_and_instructions() -> None:
    told = chat(instructions="Be brief.")["messages"]
    assert told[0] == {"role": "system", "content": "Be brief."}
    assert told[1] == {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def test_one_turn_of_the_assistant_is_one_message() -> None:
    told = messages(
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "Looking."}]},
        call("a", "c1"),
        call("b", "c2"),
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "reasoning", "id": "rs2", "summary": [{"type": "summary_text", "text": "so"}]},
        call("a", "c3"),
    )
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool", "assistant"]
    assert told[1]["reasoning_content"] == "hm" and told[1]["content"][0]["text"] == "Looking."
    assert [one["id"] for one in told[1]["tool_calls"]] == ["c1", "c2"]
    assert told[2] == {"role": "tool", "tool_call_id": "c1", "content": "sun"}
    assert told[4] == {"role": "assistant", "reasoning_content": "so", "tool_calls": told[4]["tool_calls"]}


def test_turns_of_the_assistant_are_told_apart() -> None:
    said = {"role": "assistant", "content": "x"}
    assert len(messages(said, said)) == 2
    assert len(messages(call(), said)) == 2
    assert len(messages({"role": "user", "content": "a"}, {"role": "user", "content": "b"})) == 2


def test_history_comes_first_and_instructions_before_it() -> None:
    told = chat([{"role": "user", "content": "old"}], instructions="I")["messages"]
    assert [message["content"] for message in told[:2]] == ["I", "old"] and len(told) == 3


def test_output_fields() -> None:
    schema = {"type": "object"}
    told = chat(
        max_output_tokens=5,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        temperature=0.5,
        user="u",
        stream=True,
        top_k=4,
        seed=7,
        metadata={"a": "b"},
        store=False,
    )
    del told["messages"]
    assert told == {
        "max_completion_tokens": 5,
        "reasoning_effort": "high",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0.5,
        "user": "u",
        "stream": True,
        "top_k": 4,
        "seed": 7,
    }
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}


def test_tools() -> None:
    told = chat(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False)
    function = {"name": "weather", "parameters": {"type": "object"}, "strict": True}
    assert told["tools"] == [{"type": "function", "function": function}]
    assert told["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert told["parallel_tool_calls"] is False
    for choice in ("none", "auto", "required"):
        assert chat(tools=[WEATHER], tool_choice=choice)["tool_choice"] == choice


def test_allowed_tools() -> None:
    other = WEATHER | {"name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    told = chat(tools=[WEATHER, other], tool_choice=choice)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["other"] and told["tool_choice"] == "required"


def test_keys_of_chat_that_do_not_belong_here_are_not_taken() -> None:
    told = chat(max_tokens=3, messages=[], functions=[], stream_options={"include_usage": True})
    assert told.keys() == {"messages"} and told["messages"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": ["x"]}, "invalid_request", "input[0]"),
        ({"input": [{}]}, "invalid_request", "input[0]"),
        ({"input": [{"type": 5}]}, "invalid_request", "input[0]"),
        ({"input": [{"type": "web_search_call"}]}, "unsupported", "input[0].type"),
        ({"input": [{"type": "function_call"}]}, "invalid_request", "input[0].name"),
        ({"input": [call() | {"arguments": {}}]}, "invalid_request", "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "invalid_request", "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "invalid_request",
         "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": [5]}]}, "invalid_request", "input[0].summary"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "invalid_request", "input[0].content"),
        ({"tools": [{"type": "web_search"}]}, "unsupported", "tools[0].type"),
        ({"tools": [{}]}, "unsupported", "tools[0].type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "mcp"}}, "unsupported", "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "x"}]}}, "invalid_request",
         "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "invalid_request", "tool_choice"),
        ({"background": True}, "unsupported", "background"),
        ({"truncation": "auto"}, "unsupported", "truncation"),
        ({"conversation": "c"}, "unsupported", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported", "prompt"),
        ({"n": 2}, "unsupported", "n"),
    ],
)  # fmt: skip
def test_bad_input(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(TokenmillError) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("messages[0].content", "instructions"),
        ("messages[1].content[2]", "input[0].content[2]"),
        ("messages[2]", "input[1]"),
        ("messages[2].tool_calls[1].function.name", "input[4].name"),
        ("messages[2].content", "input[2].content"),
        ("messages[3].content[0]", "input[5].output[0]"),
        ("messages", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools[0].function.parameters.type", "tools[0].parameters.type"),
        ("temperature", "temperature"),
    ],
)
def test_faults_are_told_with_the_path_of_the_clients_body(path: str, told: str) -> None:
    items = [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "summary": [], "content": [{"text": "x"}]},
        {"role": "assistant", "content": "x"},
        call(),
        call(),
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    body = ResponsesRequest.model_validate({"input": items, "instructions": "I", "tools": [WEATHER]})
    paths = to_chat(body, [], items).paths
    error = BadRequestError(f"{path} must be good", param=path)
    retell(error, paths)
    assert error.param == told and error.message == f"{told} must be good"


def test_a_name_inside_another_word_is_left_alone() -> None:
    with pytest.raises(BadRequestError) as caught, retelling({"stop": "stop_sequences"}):
        raise BadRequestError("stop holds a stopper: stop_token_ids do not", param="stop")
    assert caught.value.message == "stop_sequences holds a stopper: stop_token_ids do not"
