"""The events of a Messages stream: well nested, and joined the same message as without streaming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from tests.doors.outputs import calm, cut, outputs
from tokenmill.api.anthropic.errors import error_body, is_messages_path
from tokenmill.api.anthropic.events import MessageEvents, message_usage
from tokenmill.core.errors import BadRequestError, InternalError, OverloadedError, TokenmillError, WorkerLostError
from tokenmill.core.request import FinishReason
from tokenmill.text.parsers.events import ContentDelta, Event, ToolCallArgumentsDelta, ToolCallEnd, ToolCallStart

Json = dict[str, Any]
START, END = {"input_tokens": 1, "output_tokens": 0}, {"input_tokens": 1, "output_tokens": 9}


def run(
    feeds: list[list[Event]], reason: FinishReason = FinishReason.STOP, stop: Any = None
) -> tuple[Json, list[Json]]:
    state = MessageEvents("msg_1", "m")
    events = list(state.begin(START))
    for feed in feeds:
        events += state.feed(feed)
    events += state.end(reason, stop, END)
    return state.body, events


def joined(events: list[Json]) -> Json:
    """What a client puts together, as the `anthropic` SDK does it; blocks must be nested as promised."""
    message: Json = dict(events[0]["message"], content=[])
    assert events[0]["type"] == "message_start"
    is_open, texts = False, {}
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"]))
                is_open = True
            case "content_block_delta":
                assert is_open and event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                if delta["type"] == "input_json_delta":
                    assert block["type"] == "tool_use"
                    texts[event["index"]] = texts.get(event["index"], "") + delta["partial_json"]
                    block["input"] = from_json(texts[event["index"]], allow_partial=True)
                else:
                    kind = delta["type"].removesuffix("_delta")
                    assert block["type"] == kind
                    block[kind] += delta[kind]
            case "content_block_stop":
                assert is_open and event["index"] == len(message["content"]) - 1
                is_open = False
            case "message_delta":
                assert not is_open
                message |= event["delta"] | {"usage": event["usage"]}
            case kind:
                assert kind == "message_stop" and event is events[-1]
    return message


@calm
@given(outputs(), st.data())
def test_joined_events_are_the_final_message_however_cut(output: tuple[list[Event], bool], data: st.DataObject) -> None:
    """S50."""
    events, is_cut_off = output
    reason = FinishReason.LENGTH if is_cut_off else FinishReason.STOP
    whole, _ = run([events], reason)
    body, streamed = run(cut(events, data), reason)
    assert body == whole == joined(streamed)
    json.dumps(whole)


@pytest.mark.parametrize(
    ("events", "reason", "stop", "told"),
    [
        ([ContentDelta("a")], FinishReason.STOP, None, ("end_turn", None)),
        ([ContentDelta("a")], FinishReason.STOP, "END", ("stop_sequence", "END")),
        ([ContentDelta("a")], FinishReason.STOP, 17, ("end_turn", None)),
        ([ContentDelta("a")], FinishReason.LENGTH, None, ("max_tokens", None)),
        ([ToolCallStart(0, "c", "f"), ToolCallEnd(0)], FinishReason.STOP, None, ("tool_use", None)),
        ([ToolCallStart(0, "c", "f")], FinishReason.LENGTH, None, ("max_tokens", None)),
        ([], FinishReason.STOP, None, ("end_turn", None)),
    ],
)
def test_stop_reasons(events: list[Event], reason: FinishReason, stop: Any, told: tuple[str, str | None]) -> None:
    body, streamed = run([events], reason, stop)
    assert (body["stop_reason"], body["stop_sequence"]) == told
    assert streamed[-2]["delta"] == {"stop_reason": told[0], "stop_sequence": told[1]}
    assert [event["type"] for event in streamed[-2:]] == ["message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("nonsense", {}),
    ],
)
def test_input_of_calls_that_were_cut_off(arguments: str, value: Json) -> None:
    deltas = [ToolCallArgumentsDelta(0, arguments)] if arguments else []
    body, _ = run([[ToolCallStart(0, "c", "f"), *deltas]], FinishReason.LENGTH)
    assert body["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": value}]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequestError("bad", param="messages[0]"), "invalid_request_error"),
        (OverloadedError("full"), "rate_limit_error"),
        (WorkerLostError("gone"), "overloaded_error"),
        (InternalError("ours"), "api_error"),
    ],
)
def test_error_bodies(error: TokenmillError, kind: str) -> None:
    body = error_body(error, "req-1")
    assert body["type"] == "error" and body["request_id"] == "req-1"
    assert body["error"]["type"] == kind and body["error"]["message"] == error.message
    assert body["error"]["param"] == error.param and body["error"]["code"] == error.code


def test_paths_of_this_api() -> None:
    assert is_messages_path("/v1/messages") and is_messages_path("/v1/messages/count_tokens")
    assert not is_messages_path("/v1/messagesx") and not is_messages_path("/v1/chat/completions")


def test_usage() -> None:
    """S49: what came from the cache is not in input_tokens."""
    chat = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 8},
        "cost": {"usd": 1},
    }
    assert message_usage(chat) == {
        "input_tokens": 2,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 8,
        "output_tokens": 4,
        "output_tokens_details": {"thinking_tokens": 0},
        "cost": {"usd": 1},
    }
