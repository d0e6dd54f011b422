"""The events of a Responses stream: in order, numbered, and joined the same object as without streaming."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doors.outputs import calm, cut, outputs
from tokenmill.api.responses.events import ResponseEvents
from tokenmill.api.responses.objects import response_usage
from tokenmill.core.errors import BadRequestError, OverloadedError, WorkerLostError
from tokenmill.core.request import FinishReason
from tokenmill.text.parsers.events import ContentDelta, Event, ReasoningDelta, ToolCallArgumentsDelta, ToolCallStart

USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
Json = dict[str, Any]


def machine() -> ResponseEvents:
    numbers = count()
    return ResponseEvents({"id": "resp_1", "usage": None}, lambda prefix: f"{prefix}{next(numbers)}", lambda: 7)


def run(feeds: list[list[Event]], reason: FinishReason = FinishReason.STOP) -> tuple[Json, list[Json]]:
    state = machine()
    events = list(state.begin())
    for feed in feeds:
        events += state.feed(feed)
    events += state.end(reason, USAGE)
    return state.body, events


def joined(events: list[Json]) -> list[Json]:
    """The output that a client puts together from the deltas alone."""
    items: list[Json] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif kind == "response.content_part.added":
            assert event["content_index"] == len(items[-1]["content"])
            items[-1]["content"].append(event["part"])
        elif kind.endswith("_text.delta"):
            items[-1]["content"][0]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        elif kind == "response.output_item.done":
            items[-1]["status"] = event["item"]["status"]
            assert items[-1] == event["item"]
    return items


@calm
@given(outputs(), st.data())
def test_joined_events_are_the_final_object_however_cut(output: tuple[list[Event], bool], data: st.DataObject) -> None:
    """S50."""
    events, is_cut_off = output
    reason = FinishReason.LENGTH if is_cut_off else FinishReason.STOP
    whole, _ = run([events], reason)
    body, streamed = run(cut(events, data), reason)
    assert body == whole
    assert joined(streamed) == whole["output"]
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    assert [event["type"] for event in streamed[:2]] == ["response.created", "response.in_progress"]
    assert streamed[-1]["type"] == f"response.{'incomplete' if is_cut_off else 'completed'}"
    assert streamed[-1]["response"] == whole


@calm
@given(outputs())
def test_done_events_repeat_what_was_streamed(output: tuple[list[Event], bool]) -> None:
    _, streamed = run([output[0]])
    told: dict[tuple[int, str], str] = {}
    for event in streamed:
        stem, _, end = event["type"].rpartition(".")
        key = (event.get("output_index", -1), stem)
        if end == "delta":
            told[key] = told.get(key, "") + event["delta"]
        elif end == "done" and stem.endswith("_text"):
            assert event["text"] == told[key]
        elif end == "done" and stem.endswith("arguments"):
            assert event["arguments"] == told.get(key, "")


def test_events_do_not_change_when_the_response_grows() -> None:
    state = machine()
    first = list(state.begin())
    added = list(state.feed([ContentDelta("a")]))
    list(state.feed([ContentDelta("b")]))
    assert first[0]["response"]["output"] == []
    assert added[0]["item"]["content"] == [] and added[1]["part"]["text"] == ""


def test_the_order_of_a_whole_stream() -> None:
    _, events = run([[ReasoningDelta("hm")], [ContentDelta("ok")], [ToolCallStart(0, "c", "f")]])
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


@pytest.mark.parametrize(
    ("events", "reason", "statuses", "status"),
    [
        ([ContentDelta("a")], FinishReason.STOP, ["completed"], "completed"),
        ([ContentDelta("a")], FinishReason.LENGTH, ["incomplete"], "incomplete"),
        ([ReasoningDelta("a"), ContentDelta("b")], FinishReason.LENGTH, ["completed", "incomplete"], "incomplete"),
        ([ToolCallStart(0, "c", "f"), ToolCallArgumentsDelta(0, '{"a')], FinishReason.LENGTH, ["incomplete"],
         "incomplete"),
        ([ToolCallStart(0, "c", "f"), ToolCallArgumentsDelta(0, '{"a')], FinishReason.STOP, ["incomplete"],
         "completed"),
        ([], FinishReason.LENGTH, [], "incomplete"),
    ],
)  # fmt: skip
def test_what_was_cut_off_is_incomplete(
    events: list[Event], reason: FinishReason, statuses: list[str], status: str
) -> None:
    body, _ = run([events], reason)
    assert [item["status"] for item in body["output"]] == statuses
    assert body["status"] == status
    assert body["incomplete_details"] == {"reason": "max_output_tokens"} if status == "incomplete" else True


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerLostError("gone"), "server_error"),
        (OverloadedError("full"), "rate_limit_exceeded"),
        (BadRequestError("bad", param="text.format"), "invalid_prompt"),
    ],
)
def test_failures(error: Any, code: str) -> None:
    state = machine()
    list(state.begin())
    list(state.feed([ContentDelta("half")]))
    (event,) = state.fail(error)
    assert event["type"] == "response.failed" and event["response"]["status"] == "failed"
    assert event["response"]["error"]["code"] == code and event["response"]["error"]["message"] == error.message
    assert event["response"]["output"][0]["status"] == "incomplete"


def test_usage() -> None:
    chat = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
        "cost": {"usd": 0.1},
    }
    assert response_usage(chat) == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 14,
        "cost": {"usd": 0.1},
    }


@calm
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans())
def test_logprobs_are_those_of_all_tokens_however_cut(sizes: list[int], has_reasoning: bool) -> None:
    """Rows may come before, with and after the text they belong to."""
    rows = [{"token": str(i)} for i in range(sum(sizes) + 2)]
    state, streamed, at = machine(), [], 0
    list(state.begin())
    if has_reasoning:
        list(state.feed([ReasoningDelta("hm")], rows[:1]))
        at = 1
    for size in sizes:
        events: list[Event] = [ContentDelta("x")] if size else []
        for event in state.feed(events, rows[at : at + size]):
            streamed += event["logprobs"] if event["type"] == "response.output_text.delta" else []
        at += size
    ended = list(state.end(FinishReason.STOP, USAGE))
    if any(sizes):
        (text,) = [event for event in ended if event["type"] == "response.output_text.done"]
        assert text["logprobs"] == rows[:at] == state.body["output"][-1]["content"][0]["logprobs"]
        assert streamed == rows[: len(streamed)]
