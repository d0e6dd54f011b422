"""Reading one choice's output: its text through the model's parsers, and what is kept of it for the next turn.

Not responsible for: which parsers (chat_request.py), formats (text/parsers).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tokenmill.api.reasoning_tokens import ReasoningCounter
from tokenmill.text.parsers.base import OutputParser
from tokenmill.text.parsers.events import Event, ParsedMessage, ToolCallEnd, ToolCallStart, collect

#: (output token ids, assistant message as the client gets it) of an answer that ended by itself
Remember = Callable[[list[int], dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reading:
    """
    make_parser   one for each choice
    remember      told of every answer that ended by itself, before its last piece goes out; None: nothing is kept
    make_counter  one for each choice; None: reasoning has no tags that are tokens
    """

    make_parser: Callable[[], OutputParser]
    remember: Remember | None = None
    make_counter: Callable[[], ReasoningCounter] | None = None


class ChoiceReader:
    """One choice's parser, and what it has said so far."""

    def __init__(self, reading: Reading) -> None:
        self._parser = reading.make_parser()
        self._remember = reading.remember
        self._counter = None if reading.make_counter is None else reading.make_counter()
        self._events: list[Event] = []
        self._token_ids: list[int] = []
        self._num_calls = 0
        self._num_whole_calls = 0

    @property
    def has_whole_calls(self) -> bool:
        """There is a call, and every call has its end."""
        return 0 < self._num_calls == self._num_whole_calls

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._counter is None else self._counter.num_tokens

    def read(self, text: str, token_ids: tuple[int, ...], *, is_end: bool) -> tuple[Event, ...]:
        """Events of the next piece of text; with the last piece, of all that was held back."""
        if self._counter is not None:
            self._counter.take(token_ids)
        events = self._parser.feed(text) if text else []
        if is_end:
            events += self._parser.finish()
        self._num_calls += sum(isinstance(event, ToolCallStart) for event in events)
        self._num_whole_calls += sum(isinstance(event, ToolCallEnd) for event in events)
        if self._remember is not None:
            self._events += events
            self._token_ids += token_ids
        return tuple(events)

    async def keep(self) -> None:
        """The answer ended by itself."""
        if self._remember is not None:
            await self._remember(self._token_ids, assistant_message(collect(self._events)))


def assistant_message(parsed: ParsedMessage) -> dict[str, Any]:
    """The message of a chat answer: what clients send back as a turn of the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message |= {"reasoning": parsed.reasoning, "reasoning_content": parsed.reasoning}
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message
