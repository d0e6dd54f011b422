"""Tools, reasoning and structured output through the real `openai` Python SDK and its helpers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.api.chats import FORMATS, dispatcher, says, tool
from tests.api.live import LiveServer
from tokenmill.core.grammar import GrammarKind

USER: Any = [{"role": "user", "content": "go"}]
TOOLS: Any = [tool(strict=True)]


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    layers: int


class Put(BaseModel):
    x: str


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(dispatcher("hermes", "think")) as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_round_of_calls(server: LiveServer, client: openai.OpenAI) -> None:
    server.dispatcher.script = says(FORMATS["hermes"]("1", "2"))
    first = client.chat.completions.create(model="bytes", messages=USER, tools=TOOLS).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.tool_calls is not None
    assert [json.loads(call.function.arguments)["x"] for call in first.message.tool_calls] == ["1", "2"]  # type: ignore[union-attr]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in first.message.tool_calls]
    server.dispatcher.script = says("<think>well</think>done")
    again: Any = [*USER, first.message, *results]
    second = client.chat.completions.create(model="bytes", messages=again, tools=TOOLS).choices[0].message
    assert second.content == "done" and second.model_extra is not None
    assert second.model_extra["reasoning"] == second.model_extra["reasoning_content"] == "well"


def test_streamed_calls_through_the_helper(server: LiveServer, client: openai.OpenAI) -> None:
    """The SDK's own accumulator puts the deltas together and parses arguments of strict tools."""
    server.dispatcher.script = says("So: " + FORMATS["hermes"]("1", "2"))
    tools = [openai.pydantic_function_tool(Put, name="put")]
    with client.chat.completions.stream(model="bytes", messages=USER, tools=tools) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.done") == 2 and "content.delta" in kinds
    assert choice.finish_reason == "tool_calls" and choice.message.content == "So: "
    assert choice.message.tool_calls is not None
    parsed = [call.function.parsed_arguments for call in choice.message.tool_calls]
    assert [put.x for put in parsed] == ["1", "2"]  # type: ignore[union-attr]
    grammar = server.dispatcher.seen[-1].grammar
    assert grammar is not None and grammar.kind is GrammarKind.TOOL_CALLS, "the helper asks for strict tools"


def test_parsed_answers(server: LiveServer, client: openai.OpenAI) -> None:
    server.dispatcher.script = says('{"colour": "blue", "layers": 3}')
    answer = client.chat.completions.parse(model="bytes", messages=USER, response_format=Paint)
    assert answer.choices[0].message.parsed == Paint(colour="blue", layers=3)
    grammar = server.dispatcher.seen[-1].grammar
    assert grammar is not None and json.loads(grammar.source)["properties"]["colour"]["enum"] == ["red", "blue"]
    with client.chat.completions.stream(model="bytes", messages=USER, response_format=Paint) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Paint(colour="blue", layers=3)


def test_an_answer_that_was_cut_is_told_from_a_whole_one(server: LiveServer, client: openai.OpenAI) -> None:
    server.dispatcher.script = says('{"colour": "blue", "layers": 3}')
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="bytes", messages=USER, response_format=Paint, max_tokens=5)


def test_faults_have_their_path(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="bytes", messages=USER, tools=TOOLS, tool_choice="maybe")  # type: ignore[call-overload]
    assert caught.value.param == "tool_choice" and caught.value.code == "invalid_request"
