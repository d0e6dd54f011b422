"""Reasoning first, then the rest through a parser of tool calls. Not responsible for any format."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.text.parsers.base import OutputParser
from tokenmill.text.parsers.events import ContentDelta, Event


class ChainedParser:
    """What the first parser calls content is the second one's text."""

    def __init__(self, reasoning: OutputParser, tools: OutputParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def feed(self, text: str) -> list[Event]:
        return self._pass(self._reasoning.feed(text))

    def finish(self) -> list[Event]:
        return self._pass(self._reasoning.finish()) + self._tools.finish()

    def _pass(self, events: Iterable[Event]) -> list[Event]:
        passed: list[Event] = []
        for event in events:
            passed.extend(self._tools.feed(event.text) if isinstance(event, ContentDelta) else [event])
        return passed
