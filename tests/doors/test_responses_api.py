"""/v1/responses over HTTP: streamed and whole are one, kept responses, bad input."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import pytest

from tests.api.fakes import FakeDispatcher, card, ids
from tests.api.live import LiveServer, post_bytes, until_closed
from tests.doors.events import ARGUMENTS, CALL, THOUGHT, WEATHER, named_events, says
from tests.doors.test_responses_events import joined
from tokenmill.api.config import ApiConfig, ResponsesConfig
from tokenmill.core.errors import BadRequestError, OverloadedError, WorkerLostError

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "parameters": WEATHER}


def wait_for(is_so: Callable[[], bool], seconds: float = 10.0) -> None:
    until_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until_s, "did not happen"
        time.sleep(0.005)


def asks(text: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "input": text, "seed": 1} | fields


def create(server: LiveServer, text: Any = "hi", **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, asks(text, **fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def without_ids(response: dict[str, Any]) -> Any:
    text = json.dumps({key: value for key, value in response.items() if key not in ("created_at", "completed_at")})
    return json.loads(re.sub(r'"(resp|msg|fc|rs|call)_[0-9a-z]+"', '"ID"', text))


def prompt_of(server: LiveServer, number: int = -1) -> str:
    return bytes(server.dispatcher.seen[number].prompt_token_ids).decode()


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def test_plain(server: LiveServer) -> None:
    server.dispatcher.script = says("Hello.")
    response = create(server, "Say hello.", instructions="Be brief.", metadata={"k": "v"}, max_output_tokens=50)
    assert prompt_of(server) == "<system>Be brief.\n<user>Say hello.\n<assistant>"
    assert response["object"] == "response" and response["status"] == "completed" and response["model"] == "bytes"
    (item,) = response["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["status"] == "completed"
    assert item["content"] == [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}]
    assert response["instructions"] == "Be brief." and response["metadata"] == {"k": "v"}
    assert response["max_output_tokens"] == 50 and response["error"] is None and response["store"] is True
    usage = response["usage"]
    assert usage["input_tokens"] == len(server.dispatcher.seen[-1].prompt_token_ids)
    assert usage["output_tokens"] == 7 and usage["total_tokens"] == usage["input_tokens"] + 7
    assert usage["cost"]["usd"] > 0 and usage["cost"]["joules"] > 0


def test_reasoning_text_and_calls(server: LiveServer) -> None:
    server.dispatcher.script = says(THOUGHT + "Looking." + CALL + CALL)
    response = create(server, tools=[TOOL])
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, *calls = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see: 1 < 2."}]
    assert message["content"][0]["text"] == "Looking."
    for call in calls:
        assert (
            call["name"] == "weather" and json.loads(call["arguments"]) == ARGUMENTS and call["status"] == "completed"
        )
    assert len({call["call_id"] for call in calls}) == 2


@pytest.mark.parametrize("text", ["Hello.", THOUGHT + "Looking." + CALL + CALL, CALL, THOUGHT, "ends <think"])
@pytest.mark.parametrize("cut", [[1], [2, 5, 1], [1000]])
@pytest.mark.parametrize("max_output_tokens", [4, 40, 300])
def test_streamed_and_whole_are_one(server: LiveServer, text: str, cut: list[int], max_output_tokens: int) -> None:
    """S50, S48."""
    server.dispatcher.script = says(text)
    fields = {"tools": [TOOL], "max_output_tokens": max_output_tokens, "store": False}
    whole = create(server, **fields)
    server.dispatcher.cut = lambda request: cycle(cut)
    events = named_events(server, PATH, asks(**fields))
    final = events[-1]["response"]
    assert joined(events) == final["output"]
    assert without_ids(final) == without_ids(whole) | {"usage": without_ids(final)["usage"]}
    for key in ("input_tokens", "output_tokens", "total_tokens"):
        assert final["usage"][key] == whole["usage"][key]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ended_early = len(text.encode()) >= max_output_tokens
    assert final["status"] == ("incomplete" if ended_early else "completed")
    assert final["incomplete_details"] == ({"reason": "max_output_tokens"} if ended_early else None)


def test_many_streams_at_once(server: LiveServer) -> None:
    """S50: joined deltas are the final text in every one of many streams, five at a time."""

    def one(seed: int) -> bool:
        events = named_events(server, PATH, asks(seed=seed, max_output_tokens=20 + seed % 7, store=False))
        return joined(events) == events[-1]["response"]["output"]

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(one, range(60)))


def test_stream_interval(make_server: Callable[..., LiveServer]) -> None:
    """S52."""
    server = make_server(ApiConfig(port=0, stream_interval=7))
    events = named_events(server, PATH, asks(max_output_tokens=30))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert [len(delta) for delta in deltas] == [1, 7, 7, 7, 7, 1]
    assert "".join(deltas) == text_of(events[-1]["response"])


def test_silence_is_filled(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, keep_alive_s=0.02))
    server.dispatcher.pause_s = 0.15
    response = server.post(PATH, asks(max_output_tokens=2, stream=True))
    assert response.text.startswith(": keep-alive\n\n")
    assert '"type":"response.completed"' not in response.text and '"status":"incomplete"' in response.text


def test_logprobs(server: LiveServer) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4}
    (item,) = create(server, **fields)["output"]
    rows = item["content"][0]["logprobs"]
    assert "".join(row["token"] for row in rows) == item["content"][0]["text"]
    assert all(len(row["top_logprobs"]) == 2 and row["bytes"] for row in rows)
    events = named_events(server, PATH, asks(**fields))
    streamed = [row for event in events if event["type"] == "response.output_text.delta" for row in event["logprobs"]]
    assert streamed == rows


# -- kept responses --


def test_a_conversation_goes_on(server: LiveServer) -> None:
    """The whole conversation is the prompt of the next turn; instructions are not carried over."""
    server.dispatcher.script = says("One.")
    first = create(server, "Count.", instructions="Be brief.")
    server.dispatcher.script = says("Two.")
    second = create(server, "More.", previous_response_id=first["id"])
    assert prompt_of(server) == "<user>Count.\n<assistant>One.\n<user>More.\n<assistant>"
    third = create(server, [{"role": "user", "content": "Again."}], previous_response_id=second["id"], instructions="I")
    assert prompt_of(server).startswith("<system>I\n<user>Count.") and "<assistant>Two.\n<user>Again." in prompt_of(
        server
    )
    assert third["previous_response_id"] == second["id"]


def test_a_call_is_answered_through_the_previous_response(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(None, FakeDispatcher(card(tool_parser="hermes")))
    server.dispatcher.script = says(CALL)
    first = create(server, tools=[TOOL])
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "sun"}
    server.dispatcher.script = says("Sunny.")
    second = create(server, [result], tools=[TOOL], previous_response_id=first["id"])
    assert text_of(second) == "Sunny." and "<tool>sun\n" in prompt_of(server)
    wrong = server.post(PATH, asks([result | {"call_id": "other"}], previous_response_id=first["id"]))
    assert wrong.status_code == 400 and wrong.json()["error"]["param"].startswith("input[0]")


def test_streamed_responses_are_kept_too(server: LiveServer) -> None:
    final = named_events(server, PATH, asks(max_output_tokens=3))[-1]["response"]
    assert server.client.get(f"{PATH}/{final['id']}").json() == final


def test_get_and_delete(server: LiveServer) -> None:
    response = create(server, max_output_tokens=3)
    url = f"{PATH}/{response['id']}"
    assert server.client.get(url).json() == response
    assert server.client.get(url, params={"stream": "true"}).status_code == 400
    assert server.client.delete(url).json() == {"id": response["id"], "object": "response", "deleted": True}
    for gone in (server.client.get(url), server.client.delete(url)):
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "not_found"
    next_turn = server.post(PATH, asks(previous_response_id=response["id"]))
    assert next_turn.status_code == 400 and next_turn.json()["error"]["code"] == "previous_response_not_found"


def test_what_is_not_to_be_kept_is_not(server: LiveServer) -> None:
    response = create(server, store=False, max_output_tokens=3)
    assert response["store"] is False and server.client.get(f"{PATH}/{response['id']}").status_code == 404


def test_references_to_items(server: LiveServer) -> None:
    server.dispatcher.script = says("One.")
    (item,) = create(server)["output"]
    create(server, [{"role": "user", "content": "a"}, {"type": "item_reference", "id": item["id"]},
                    {"role": "user", "content": "b"}])  # fmt: skip
    assert prompt_of(server) == "<user>a\n<assistant>One.\n<user>b\n<assistant>"


def test_the_store_is_bounded(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, responses=ResponsesConfig(max_bytes=6000)))
    made = [create(server, max_output_tokens=3)["id"] for _ in range(10)]
    found = [server.client.get(f"{PATH}/{one}").status_code == 200 for one in made]
    assert found[-1] and not found[0] and server.context.responses.num_bytes <= 6000


# -- failures --


def test_failure_before_the_first_event(server: LiveServer) -> None:
    server.dispatcher.error = OverloadedError("the queue is full")
    response = server.post(PATH, asks(stream=True))
    assert response.status_code == 429 and response.json()["error"]["code"] == "overloaded"


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_worker_name_the_clients_field(server: LiveServer, stream: bool) -> None:
    """A grammar is compiled where the model is."""
    path = "response_format.json_schema.schema"
    server.dispatcher.error = BadRequestError(f"{path}.properties must be an object", param=f"{path}.properties")
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"properties": 5}}}
    response = server.post(PATH, asks() | {"text": text, "stream": stream})
    assert response.status_code == 400 and response.json()["error"]["param"] == "text.format.schema.properties"
    assert response.json()["error"]["message"] == "text.format.schema.properties must be an object"


def test_failure_after_the_first_event(server: LiveServer) -> None:
    server.dispatcher.error, server.dispatcher.fail_at = WorkerLostError("the worker died"), 3
    events = named_events(server, PATH, asks())
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.failed" and final["status"] == "failed"
    assert final["error"]["code"] == "server_error" and final["error"]["message"] == "the worker died"
    assert len(text_of(final)) == 3 and server.client.get(f"{PATH}/{final['id']}").json() == final


BAD = [
    ({"input": 5}, "invalid_request", "input"),
    ({"input": None}, "invalid_request", "input"),
    ({"input": []}, "invalid_request", "input"),
    ({"input": "x" * 5000}, "context_length_exceeded", "input"),
    ({"input": [{"role": "robot", "content": "x"}]}, "invalid_request", "input[0].role"),
    ({"input": [{"role": "user", "content": 5}]}, "invalid_request", "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "unsupported",
     "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}], "instructions": "I"}, "invalid_request",
     "input[0].content[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "invalid_request", "input[0]"),
    ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "invalid_request", "input[0].id"),
    ({"max_output_tokens": 0}, "invalid_request", "max_output_tokens"),
    ({"max_output_tokens": "5"}, "invalid_request", "max_output_tokens"),
    ({"max_output_tokens": 10**6}, "context_length_exceeded", "max_output_tokens"),
    ({"temperature": -1}, "invalid_request", "temperature"),
    ({"top_logprobs": 21}, "invalid_request", "top_logprobs"),
    ({"stream": 1}, "invalid_request", "stream"),
    ({"metadata": {"a": 1}}, "invalid_request", "metadata.a"),
    ({"include": "x"}, "invalid_request", "include"),
    ({"truncation": "middle"}, "invalid_request", "truncation"),
    ({"background": True}, "unsupported", "background"),
    ({"previous_response_id": "resp_x"}, "previous_response_not_found", "previous_response_id"),
    ({"previous_response_id": 5}, "invalid_request", "previous_response_id"),
    ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "invalid_request", "tools[0].parameters"),
    ({"tools": [{"type": "function"}]}, "invalid_request", "tools[0].name"),
    ({"tools": ["f"]}, "invalid_request", "tools[0]"),
    ({"tools": [{"type": "web_search"}]}, "unsupported", "tools[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "invalid_request", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "invalid_request", "tool_choice.name"),
    ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
    ({"text": {"format": {"type": "yaml"}}}, "unsupported", "text.format.type"),
    ({"text": {"format": "json"}}, "invalid_request", "text.format"),
    ({"reasoning": {"effort": 5}}, "invalid_request", "reasoning.effort"),
    ({"chat_template_kwargs": {"messages": 1}}, "invalid_request", "chat_template_kwargs.messages"),
    ({"model": "nope"}, "model_not_found", "model"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input(server: LiveServer, fields: dict[str, Any], code: str, param: str, stream: bool) -> None:
    response = server.post(PATH, asks() | {"stream": stream} | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404 if "model" in fields else 400, code, param)
    assert "messages" not in error["message"].replace("chat_template_kwargs.messages", "")
    assert not server.dispatcher.seen


def test_bytes_that_are_no_text(server: LiveServer) -> None:
    for body in (b'{"input": "\xff"}', b"{", b"[]", b'{"input": ' + b"[" * 50_000):
        with server.raw() as connection:
            connection.sendall(post_bytes(PATH, body, "connection: close"))
            assert until_closed(connection).startswith(b"HTTP/1.1 400")


def test_characters_across_tokens(server: LiveServer) -> None:
    """S43."""
    server.dispatcher.script = lambda request: [*ids("é€👩‍👩‍👧"), *b"\xf0\x9f", 0]
    whole = create(server)
    assert text_of(whole) == "é€👩‍👩‍👧\ufffd"
    events = named_events(server, PATH, asks())
    assert joined(events) == events[-1]["response"]["output"] and text_of(events[-1]["response"]) == text_of(whole)


@pytest.mark.parametrize("path", [PATH, "/v1/messages"])
def test_leaving_ends_the_generation(server: LiveServer, path: str) -> None:
    """S57, S61: at once, and nothing of it is kept."""
    num_kept = len(server.context.responses)
    server.dispatcher.pause_s = 0.005
    body = asks(include=["message.output_text.logprobs"], max_tokens=1000, stream=True)
    body |= {"messages": [{"role": "user", "content": "x"}]}
    for num_bytes in (1, 400, 5000):
        with server.raw() as connection:
            connection.sendall(post_bytes(path, json.dumps(body).encode()))
            while num_bytes > 0:
                num_bytes -= len(connection.recv(num_bytes))
        wait_for(lambda: not server.dispatcher.running)
    assert len(server.dispatcher.aborted) == 3 and len(server.context.responses) == num_kept


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": "\\ud800"}',
        b'{"input": "hi", "metadata": {"a": "\\ud800"}}',
        b'{"input": "hi", "instructions": "\\udfff\\ud800"}',
        b'{"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {"x": 1e999}}]}',
        b'{"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": ' + b'{"a":' * 150 + b"1"
        + b"}" * 150 + b"}}}",
        b'{"input": [' + b'{"role": "user", "content": "x"},' * 300 + b'{"role": "user", "content": "x"}]}',
    ],
)  # fmt: skip
def test_odd_bodies_are_answered_or_refused(server: LiveServer, body: bytes) -> None:
    """Half a character, an infinite number, a schema within a schema, many turns: never a 500."""
    for path, extra in (
        (PATH, b""),
        ("/v1/messages", b'"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], '),
    ):
        sent = b"{" + extra + b'"model": "bytes", "max_output_tokens": 3, ' + body[1:]
        response = server.client.post(path, content=sent, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400), response.text
        assert response.json()
