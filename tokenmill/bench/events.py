"""What arrives of one streamed answer: server-sent events in, times and counts out. Not responsible for: sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: Any = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_DATA = b"data:"


class Answer:
    """Fed with the pieces of a body as they come.

    chunk_s  when each event that carried output arrived; events that came together have one time
    texts    their content, for the prompt of the next turn
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rest = b""
        self.chunk_s: list[float] = []
        self.texts: list[str] = []
        self.usage: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.finish_s: float | None = None
        self.is_done = False
        self.error: str | None = None

    def feed(self, data: bytes) -> None:
        now_s = self._now()
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(_DATA):
                self._take(line[5:].strip(), now_s)

    def _take(self, payload: bytes, now_s: float) -> None:
        if payload == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _decode(payload)
        except msgspec.MsgspecError:
            self.error = self.error or "the stream holds an event that is not a completion chunk"
            return
        if chunk.error is not None:
            self.error = f"stream {error_name(chunk.error)}"
        if chunk.usage:
            self.usage = chunk.usage
        for choice in chunk.choices or ():
            self._hear(choice, now_s)

    def _hear(self, choice: _Choice, now_s: float) -> None:
        delta = choice.delta
        text = choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning))
        if text or (delta and delta.tool_calls):
            self.chunk_s.append(now_s)
            if isinstance(text, str):
                self.texts.append(text)
        if choice.finish_reason:
            self.finish_reason, self.finish_s = choice.finish_reason, now_s


def error_name(error: Any) -> str:
    """Short and the same for equal errors, so that they can be counted."""
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or "error")
    return str(error)[:60]


def refusal(status: int, body: bytes) -> str:
    try:
        return f"{status} {error_name(msgspec.json.decode(body)['error'])}"
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f"{status} {body[:60].decode(errors='replace')}".rstrip()
