"""/v1/messages over HTTP: streamed and whole are one, prompts counted as they are run, errors in Anthropic's words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import pytest

from tests.api.fakes import FakeDispatcher, card, ids
from tests.api.live import LiveServer, post_bytes, until_closed
from tests.doors.events import ARGUMENTS, CALL, THOUGHT, WEATHER, named_events, says
from tests.doors.test_anthropic_events import joined
from tokenmill.api.config import ApiConfig
from tokenmill.core.errors import BadRequestError, OverloadedError, WorkerLostError

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
TOOL = {"name": "weather", "description": "d", "input_schema": WEATHER}


def asks(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return {"model": "bytes", "max_tokens": 100, "messages": messages, "seed": 1} | fields


def create(server: LiveServer, content: Any = "hi", **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, asks(content, **fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def without_ids(message: dict[str, Any]) -> Any:
    return json.loads(re.sub(r'"(msg|call)_[0-9a-z]+"', '"ID"', json.dumps(message)))


def prompt_of(server: LiveServer) -> str:
    return bytes(server.dispatcher.seen[-1].prompt_token_ids).decode()


def test_plain(server: LiveServer) -> None:
    server.dispatcher.script = says("Hello.")
    message = create(server, "Say hello.", system="Be brief.")
    assert prompt_of(server) == "<system>Be brief.\n<user>Say hello.\n<assistant>"
    assert message["type"] == "message" and message["role"] == "assistant" and message["id"].startswith("msg_")
    assert message["content"] == [{"type": "text", "text": "Hello."}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage, num_prompt = message["usage"], len(server.dispatcher.seen[-1].prompt_token_ids)
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num_prompt
    assert usage["output_tokens"] == 7 and usage["cost"]["usd"] > 0


def test_cached_tokens_are_told_apart(server: LiveServer) -> None:
    """S49."""
    text = "the same long beginning of every prompt " * 3
    create(server, text, max_tokens=1)
    usage = create(server, text, max_tokens=1)["usage"]
    assert usage["cache_read_input_tokens"] > 64 and usage["cache_read_input_tokens"] % 16 == 0
    num_prompt = len(server.dispatcher.seen[-1].prompt_token_ids)
    assert usage["input_tokens"] == num_prompt - usage["cache_read_input_tokens"]


def test_thinking_text_and_calls(server: LiveServer) -> None:
    server.dispatcher.script = says(THOUGHT + "Looking." + CALL + CALL)
    message = create(server, tools=[TOOL], max_tokens=500)
    thinking, text, *calls = message["content"]
    assert thinking == {"type": "thinking", "thinking": "Let me see: 1 < 2.", "signature": ""}
    assert text == {"type": "text", "text": "Looking."}
    assert [call["input"] for call in calls] == [ARGUMENTS] * 2 and len({call["id"] for call in calls}) == 2
    assert message["stop_reason"] == "tool_use"


def test_a_call_and_its_result(server: LiveServer) -> None:
    server.dispatcher.script = says(CALL)
    first = create(server, "Weather?", tools=[TOOL], max_tokens=500)
    (call,) = first["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "sun"}]}
    turns = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    server.dispatcher.script = says("Sunny.")
    assert create(server, turns, tools=[TOOL])["content"] == [{"type": "text", "text": "Sunny."}]
    assert prompt_of(server).endswith("<tool>sun\n<assistant>")


@pytest.mark.parametrize("text", ["Hello.", THOUGHT + "Looking." + CALL + CALL, CALL, THOUGHT, "ends <think"])
@pytest.mark.parametrize("cut", [[1], [2, 5, 1], [1000]])
@pytest.mark.parametrize("max_tokens", [4, 40, 300])
def test_streamed_and_whole_are_one(server: LiveServer, text: str, cut: list[int], max_tokens: int) -> None:
    """S50, S48."""
    server.dispatcher.script = says(text)
    fields = {"tools": [TOOL], "max_tokens": max_tokens}
    whole = create(server, **fields)
    server.dispatcher.cut = lambda request: cycle(cut)
    events = named_events(server, PATH, asks(**fields))
    streamed = joined(events)
    assert without_ids(streamed) == without_ids(whole) | {"usage": streamed["usage"]}
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert (whole["stop_reason"] == "max_tokens") is (len(text.encode()) >= max_tokens)


def test_many_streams_at_once(server: LiveServer) -> None:
    """S50."""

    def one(seed: int) -> bool:
        fields = {"seed": seed, "max_tokens": 20 + seed % 7}
        return joined(named_events(server, PATH, asks(**fields)))["content"] == create(server, **fields)["content"]

    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(one, range(60)))


def test_no_part_of_a_stop_sequence_is_shown(server: LiveServer) -> None:
    """S41."""
    server.dispatcher.script = says("one two STOP three")
    for stream in (False, True):
        fields = {"stop_sequences": ["STOP", "x"]}
        message = joined(named_events(server, PATH, asks(**fields))) if stream else create(server, **fields)
        assert message["content"] == [{"type": "text", "text": "one two "}]
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "STOP")


def test_the_last_turn_of_the_assistant_is_continued(server: LiveServer) -> None:
    create(server, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is"}])
    assert prompt_of(server) == "<user>hi\n<assistant>The answer is"


def test_count_tokens_counts_the_prompt_that_is_run(server: LiveServer) -> None:
    """S53."""
    for fields in ({}, {"system": "s"}, {"tools": [TOOL]}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}):
        create(server, "Say hello.", **fields)
        body = asks("Say hello.", **fields)
        del body["max_tokens"]
        counted = server.post(COUNT, body).json()
        assert counted == {"input_tokens": len(server.dispatcher.seen[-1].prompt_token_ids)}


def test_silence_is_filled_with_pings(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, keep_alive_s=0.02))
    server.dispatcher.pause_s = 0.15
    text = server.post(PATH, asks(max_tokens=2, stream=True)).text
    assert text.startswith(": keep-alive\n\n")
    assert text.index("event: message_start") < text.index('event: ping\ndata: {"type": "ping"}\n\n')


def test_both_headers_are_the_key(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, api_key="secret"))
    for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert server.client.post(PATH, json=asks(), headers=headers).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"authorization": "Bearer"}):
        refused = server.client.post(PATH, json=asks(), headers=headers)
        assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"
    assert server.client.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200


# -- failures --


def test_errors_are_told_in_the_words_of_this_api(server: LiveServer) -> None:
    response = server.client.post(PATH, json=asks(max_tokens=0), headers={"x-request-id": "trace-1"})
    body = response.json()
    assert response.status_code == 400 and body["type"] == "error" and body["request_id"] == "trace-1"
    assert body["error"]["type"] == "invalid_request_error" and body["error"]["param"] == "max_tokens"
    assert server.client.get(PATH).json()["type"] == "error"


def test_failure_before_the_first_event(server: LiveServer) -> None:
    server.dispatcher.error = OverloadedError("the queue is full")
    response = server.post(PATH, asks(stream=True))
    assert response.status_code == 429 and response.json()["error"]["type"] == "rate_limit_error"
    assert response.headers["retry-after"]


def test_failure_after_the_first_event(server: LiveServer) -> None:
    server.dispatcher.error, server.dispatcher.fail_at = WorkerLostError("the worker died"), 3
    events = named_events(server, PATH, asks())
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "overloaded_error"
    assert "message_stop" not in [event["type"] for event in events]


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_worker_name_the_clients_field(server: LiveServer, stream: bool) -> None:
    path = "response_format.json_schema.schema"
    server.dispatcher.error = BadRequestError(f"{path} is recursive", param=path)
    config = {"format": {"type": "json_schema", "schema": {"$ref": "#"}}}
    error = server.post(PATH, asks(output_config=config, stream=stream)).json()["error"]
    assert error["param"] == "output_config.format.schema" and error["message"] == f"{error['param']} is recursive"


BAD = [
    ({"messages": []}, "invalid_request", "messages"),
    ({"messages": "x"}, "invalid_request", "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_request", "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_request", "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "invalid_request", "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "unsupported",
     "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]},
     "invalid_request", "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "context_length_exceeded", "messages"),
    ({"max_tokens": None}, "invalid_request", "max_tokens"),
    ({"max_tokens": 0}, "invalid_request", "max_tokens"),
    ({"max_tokens": 10**6}, "context_length_exceeded", "max_tokens"),
    ({"stop_sequences": "x"}, "invalid_request", "stop_sequences"),
    ({"stop_sequences": [""]}, "invalid_request", "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, "invalid_request", "stop_sequences"),
    ({"temperature": "hot"}, "invalid_request", "temperature"),
    ({"top_k": -2}, "invalid_request", "top_k"),
    ({"system": 5}, "invalid_request", "system"),
    ({"system": [{"type": "image"}]}, "unsupported", "system[0]"),
    ({"thinking": {"type": "sometimes"}}, "invalid_request", "thinking.type"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "invalid_request", "tools[0].input_schema"),
    ({"tools": [{"input_schema": {"type": "object"}}]}, "invalid_request", "tools[0].name"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "unsupported", "tools[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "invalid_request", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "invalid_request", "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "invalid_request", "tool_choice"),
    ({"tool_choice": "any"}, "invalid_request", "tool_choice"),
    ({"output_config": {"format": {"type": "xml"}}}, "unsupported", "output_config.format"),
    ({"model": "nope"}, "model_not_found", "model"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input(server: LiveServer, fields: dict[str, Any], code: str, param: str, stream: bool) -> None:
    response = server.post(PATH, asks() | {"stream": stream} | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404 if "model" in fields else 400, code, param)
    assert not server.dispatcher.seen


def test_bytes_that_are_no_text(server: LiveServer) -> None:
    for body in (b'{"messages": "\xff"}', b"{", b"[]"):
        with server.raw() as connection:
            connection.sendall(post_bytes(PATH, body, "connection: close"))
            answer = until_closed(connection)
            assert answer.startswith(b"HTTP/1.1 400") and b'"type":"error"' in answer


def test_characters_across_tokens(server: LiveServer) -> None:
    """S43."""
    server.dispatcher.script = lambda request: [*ids("é€👩‍👩‍👧"), *b"\xf0\x9f", 0]
    content = [{"type": "text", "text": "é€👩‍👩‍👧\ufffd"}]
    assert create(server)["content"] == content
    assert joined(named_events(server, PATH, asks()))["content"] == content


def test_a_model_without_thinking_is_not_asked_to(make_server: Callable[..., LiveServer]) -> None:
    """The switch reaches the template only as a variable that it may not know."""
    server = make_server(None, FakeDispatcher(card()))
    assert create(server, thinking={"type": "adaptive"}, max_tokens=2)["content"][0]["type"] == "text"
