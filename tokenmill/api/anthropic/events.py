"""Events of one output as the named events of a Messages stream, and the message that they add up to. Pure.

Streaming or not, the same state machine runs: without streaming its events are thrown away. Each run of reasoning,
text, and each call is a block of its own. Not responsible for: bytes (sse.py), reading the model's text (text/parsers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from tokenmill.api.anthropic.errors import error_body
from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import FinishReason
from tokenmill.text.parsers.events import ContentDelta, Event, ReasoningDelta, ToolCallArgumentsDelta, ToolCallStart

Json = dict[str, Any]


class MessageEvents:
    """One message. `body` is the object as of now; events are dicts with `type`."""

    def __init__(self, message_id: str, model: str) -> None:
        self.body: Json = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": None,
        }
        self._is_closed = True  # the last block
        self._arguments: str | None = None  # of the call that is open

    def begin(self, usage: Json) -> Iterator[Json]:
        """`usage` as far as it is known: the prompt's."""
        self.body["usage"] = usage
        yield {"type": "message_start", "message": self.body | {"content": []}}

    def feed(self, events: Sequence[Event]) -> Iterator[Json]:
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._text("text", text, {})
                case ReasoningDelta(text):
                    yield from self._text("thinking", text, {"signature": ""})
                case ToolCallStart(_, call_id, name):
                    yield from self._close()
                    yield self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                    self._arguments = ""
                case ToolCallArgumentsDelta(_, text):
                    assert self._arguments is not None, "arguments outside a call"
                    self._arguments += text
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def end(self, reason: FinishReason, stop: str | int | None, usage: Json) -> Iterator[Json]:
        """`stop`: the stop sequence that ended the text."""
        yield from self._close()
        has_calls = any(block["type"] == "tool_use" for block in self.body["content"])
        ending = {"stop_reason": _stop_reason(reason, stop, has_calls), "stop_sequence": None}
        if isinstance(stop, str):
            ending["stop_sequence"] = stop
        self.body |= ending | {"usage": usage}
        yield {"type": "message_delta", "delta": ending, "usage": usage}
        yield {"type": "message_stop"}

    def fail(self, error: TokenmillError, request_id: str | None) -> Iterator[Json]:
        """A stream that has begun ends so."""
        yield error_body(error, request_id)

    def _text(self, kind: str, text: str, more: Json) -> Iterator[Json]:
        content = self.body["content"]
        if self._is_closed or content[-1]["type"] != kind:
            yield from self._close()
            yield self._open({"type": kind, kind: "", **more})
        content[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _open(self, block: Json) -> Json:
        self._is_closed = False
        self.body["content"].append(block)
        return {"type": "content_block_start", "index": self._index(), "content_block": dict(block)}

    def _close(self) -> Iterator[Json]:
        if self._is_closed:
            return
        if self._arguments is not None:
            self.body["content"][-1]["input"] = _input(self._arguments)
            self._arguments = None
        self._is_closed = True
        yield {"type": "content_block_stop", "index": self._index()}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index(), "delta": delta}

    def _index(self) -> int:
        return len(self.body["content"]) - 1


def _input(arguments: str) -> Json:
    """The object, or as much of it as there is when the call was cut off: what clients make of the deltas, too."""
    try:
        value = from_json(arguments, allow_partial=True) if arguments else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _stop_reason(reason: FinishReason, stop: str | int | None, has_calls: bool) -> str:
    if reason is FinishReason.LENGTH:
        return "max_tokens"
    if isinstance(stop, str):
        return "stop_sequence"
    return "tool_use" if has_calls else "end_turn"


def message_usage(usage: Json) -> Json:
    """The usage of a chat answer in Anthropic's words: input_tokens are those that did not come from the cache."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
    told = {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,  # writing to the cache costs nothing extra here
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": reasoning},
    }
    return told | ({"cost": usage["cost"]} if "cost" in usage else {})
