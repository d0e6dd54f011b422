"""Events of one output as the events of a Responses stream, and the response object that they add up to. Pure.

Streaming or not, the same state machine runs: without streaming its events are thrown away. Each run of reasoning,
text, and each call is an item of its own. Not responsible for: bytes (sse.py), reading the model's text (text/parsers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import FinishReason
from tokenmill.text.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

Json = dict[str, Any]

#: Part type -> the stem of its events.
_TEXT_STEMS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponseEvents:
    """One response. `body` is the object as of now; events are dicts with `type` and `sequence_number`.

    make_id       prefix -> a new id, for items
    completed_s   Unix time now, for the end
    """

    def __init__(self, body: Json, make_id: Callable[[str], str], completed_s: Callable[[], int]) -> None:
        self.body = body | {"status": "in_progress", "output": []}
        self._make_id = make_id
        self._completed_s = completed_s
        self._num_events = 0
        self._open: Json | None = None  # the last item while it grows
        self._rows: list[Json] | None = None  # logprobs that have not found their text yet

    def begin(self) -> Iterator[Json]:
        yield self._event("response.created", response=self._snapshot())
        yield self._event("response.in_progress", response=self._snapshot())

    def feed(self, events: Sequence[Event], logprobs: Sequence[Json] | None = None) -> Iterator[Json]:
        """`logprobs`: of the tokens behind `events`, where asked for; a message has those of all tokens before its end,
        of reasoning and calls too, as in a chat answer."""
        if logprobs is not None:
            self._rows = [*(self._rows or ()), *logprobs]
        for event in events:
            match event:
                case ContentDelta(text):
                    yield from self._text("message", "output_text", text)
                case ReasoningDelta(text):
                    yield from self._text("reasoning", "reasoning_text", text)
                case ToolCallStart(_, call_id, name):
                    yield from self._close("completed")
                    call = {"call_id": call_id, "name": name, "arguments": ""}
                    yield self._add_item("function_call", "fc_", call)
                case ToolCallArgumentsDelta(_, text):
                    assert self._open is not None and self._open["type"] == "function_call", "arguments outside a call"
                    self._open["arguments"] += text
                    yield self._item_event("response.function_call_arguments.delta", delta=text)
                case ToolCallEnd(_):
                    yield from self._close("completed")

    def end(self, reason: FinishReason, usage: Json) -> Iterator[Json]:
        is_whole = reason is not FinishReason.LENGTH
        if self._open is not None and self._open["type"] == "message":
            self._open["content"][0]["logprobs"].extend(self._take_rows())
        yield from self._close("completed" if is_whole and not self._is_in_call() else "incomplete")
        self.body |= {"status": "completed", "completed_at": self._completed_s(), "usage": usage}
        if is_whole:
            yield self._event("response.completed", response=self._snapshot())
            return
        self.body |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        yield self._event("response.incomplete", response=self._snapshot())

    def fail(self, error: TokenmillError) -> Iterator[Json]:
        """A stream that has begun ends so."""
        if self._open is not None:
            self._open["status"] = "incomplete"
        code = _CODES.get(error.status, "server_error")
        told = {"code": code, "message": error.message, "param": error.param, "type": error.code}
        self.body |= {"status": "failed", "error": told}
        yield self._event("response.failed", response=self._snapshot())

    # -- items --

    def _text(self, item_type: str, part_type: str, text: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != item_type:
            yield from self._close("completed")
            yield from self._open_text(item_type, part_type)
        assert self._open is not None, "just opened"
        part = self._open["content"][0]
        part["text"] += text
        more: Json = {}
        if part_type == "output_text":
            more["logprobs"] = self._take_rows()
            part["logprobs"].extend(more["logprobs"])
        yield self._part_event(f"{_TEXT_STEMS[part_type]}.delta", delta=text, **more)

    def _take_rows(self) -> list[Json]:
        rows, self._rows = self._rows or [], None
        return rows

    def _open_text(self, item_type: str, part_type: str) -> Iterator[Json]:
        part: Json = {"type": part_type, "text": ""}
        if item_type == "message":
            part |= {"annotations": [], "logprobs": []}
            yield self._add_item("message", "msg_", {"role": "assistant", "content": []})
        else:
            yield self._add_item("reasoning", "rs_", {"summary": [], "content": [], "encrypted_content": None})
        assert self._open is not None, "just added"
        yield self._part_event("response.content_part.added", part=_copy(part))
        self._open["content"].append(part)

    def _add_item(self, item_type: str, prefix: str, fields: Json) -> Json:
        item = {"type": item_type, "id": self._make_id(prefix), "status": "in_progress", **fields}
        self._open = item
        self.body["output"].append(item)
        return self._event("response.output_item.added", output_index=self._index(), item=_copy(item))

    def _close(self, status: str) -> Iterator[Json]:
        item = self._open
        if item is None:
            return
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._item_event("response.function_call_arguments.done", **done)
        else:
            yield from self._close_part(item["content"][0])
        item["status"] = status
        yield self._event("response.output_item.done", output_index=self._index(), item=_copy(item))
        self._open = None

    def _close_part(self, part: Json) -> Iterator[Json]:
        more = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
        yield self._part_event(f"{_TEXT_STEMS[part['type']]}.done", text=part["text"], **more)
        yield self._part_event("response.content_part.done", part=_copy(part))

    def _is_in_call(self) -> bool:
        """A call that was never ended is not whole, whatever ended the output."""
        return self._open is not None and self._open["type"] == "function_call"

    # -- events --

    def _index(self) -> int:
        return len(self.body["output"]) - 1

    def _part_event(self, kind: str, **fields: Any) -> Json:
        return self._item_event(kind, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> Json:
        assert self._open is not None, f"{kind} without an item"
        return self._event(kind, item_id=self._open["id"], output_index=self._index(), **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event

    def _snapshot(self) -> Json:
        return self.body | {"output": [_copy(item) for item in self.body["output"]]}


def _copy(value: Any) -> Any:
    """Of JSON, so that an event does not change when its item grows."""
    if isinstance(value, dict):
        return {key: _copy(one) for key, one in value.items()}
    return [_copy(one) for one in value] if isinstance(value, list) else value
