"""The real `openai` Python SDK on /v1/responses: its own state machines read our streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.api.live import LiveServer
from tests.doors.events import ARGUMENTS, CALL, THOUGHT, WEATHER, named_events, says
from tokenmill.core.errors import WorkerLostError
from tokenmill.core.grammar import GrammarKind


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_create(client: openai.OpenAI, server: LiveServer) -> None:
    server.dispatcher.script = says("Hello.")
    response = client.responses.create(model="bytes", input="Say hello.", instructions="Be brief.")
    assert response.output_text == "Hello." and response.status == "completed"
    assert response.usage is not None and response.usage.input_tokens_details.cached_tokens >= 0
    assert response.usage.model_extra is not None and response.usage.model_extra["cost"]["usd"] > 0
    assert client.responses.retrieve(response.id).output_text == "Hello."
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


@pytest.mark.parametrize("cut", [[1], [3, 1], [1000]])
def test_stream(client: openai.OpenAI, server: LiveServer, cut: list[int]) -> None:
    """S50: the SDK checks the order of events, and its snapshot is the final object."""
    server.dispatcher.script = says(THOUGHT + "Looking." + CALL + CALL)
    server.dispatcher.cut = lambda request: cycle(cut)
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}
    text = arguments = reasoning = ""
    with client.responses.stream(model="bytes", input="Weather?", tools=[tool]) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.reasoning_text.delta":
                reasoning += event.delta
            elif event.type == "response.function_call_arguments.delta":
                arguments += event.delta
        final = stream.get_final_response()
    assert text == final.output_text == "Looking." and reasoning == "Let me see: 1 < 2."
    calls = [item for item in final.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [ARGUMENTS] * 2
    assert "".join(call.arguments for call in calls) == arguments


def test_every_event_has_the_fields_that_the_sdk_knows(server: LiveServer) -> None:
    """Its stream reader is lenient; its types are not."""
    server.dispatcher.script = says(THOUGHT + "Looking." + CALL)
    body = {"model": "bytes", "input": "x", "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}]}
    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    body["tools"][0]["strict"] = False
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    kinds = {adapter.validate_python(event).type for event in named_events(server, "/v1/responses", body)}
    assert len(kinds) == 13
    Response.model_validate(server.post("/v1/responses", body).json())


def test_tools_round_trip(client: openai.OpenAI, server: LiveServer) -> None:
    """With the items sent back, and with previous_response_id: the same prompt."""
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}
    server.dispatcher.script = says(CALL)
    first = client.responses.create(model="bytes", input="Weather?", tools=[tool])
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    server.dispatcher.script = says("Sunny.")
    items = [{"role": "user", "content": "Weather?"}, call.to_dict(), result]
    assert client.responses.create(model="bytes", input=items, tools=[tool]).output_text == "Sunny."
    second = client.responses.create(model="bytes", input=[result], tools=[tool], previous_response_id=first.id)
    assert second.output_text == "Sunny."
    prompts = [request.prompt_token_ids for request in server.dispatcher.seen[-2:]]
    assert prompts[0] == prompts[1]


def test_parse(client: openai.OpenAI, server: LiveServer) -> None:
    class Weather(BaseModel):
        city: str
        days: int

    server.dispatcher.script = says(json.dumps(ARGUMENTS))
    response = client.responses.parse(model="bytes", input="Weather?", text_format=Weather)
    assert response.output_parsed == Weather(**ARGUMENTS)
    grammar = server.dispatcher.seen[-1].grammar
    assert grammar is not None and grammar.kind is GrammarKind.JSON_SCHEMA and "city" in grammar.source


def test_cut_off(client: openai.OpenAI) -> None:
    response = client.responses.create(model="bytes", input="x", max_output_tokens=5)
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens" and len(response.output_text) == 5


def test_failures(client: openai.OpenAI, server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="bytes", input="x", temperature=-1)
    assert caught.value.param == "temperature"
    server.dispatcher.error, server.dispatcher.fail_at = WorkerLostError("the worker died"), 2
    events = list(client.responses.create(model="bytes", input="x", stream=True))
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed"
