"""What an output parser reports, and the message that a list of reports adds up to. Not responsible for parsing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """`index` counts the calls of one output from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArgumentsDelta:
    """A piece of the call's arguments, which are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole. A call without this event was cut off: its arguments are the beginning of a JSON object."""

    index: int


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArgumentsDelta | ToolCallEnd


@dataclass(frozen=True, slots=True)
class ParsedCall:
    id: str
    name: str
    arguments: str
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ParsedCall, ...] = ()


def collect(events: Iterable[Event]) -> ParsedMessage:
    """The message that the events of one output, in order, add up to: the non-streaming answer."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ParsedCall] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case ToolCallStart(index, call_id, name):
                assert index == len(calls), f"call {index} starts after {len(calls)} calls"
                calls.append(ParsedCall(call_id, name, "", is_complete=False))
            case ToolCallArgumentsDelta(index, text):
                call = calls[index]
                calls[index] = ParsedCall(call.id, call.name, call.arguments + text, is_complete=False)
            case ToolCallEnd(index):
                call = calls[index]
                calls[index] = ParsedCall(call.id, call.name, call.arguments, is_complete=True)
    return ParsedMessage("".join(reasoning), "".join(content), tuple(calls))
