"""The seam of output parsers, and the loop that the built-in ones share. Not responsible for any format.

A parser turns the text of one output into events. However the text is cut into `feed` calls, the merged events are
the same: every decision depends on the text alone, never on where a piece ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tokenmill.text.parsers.events import ContentDelta, Event, ReasoningDelta, ToolCallArgumentsDelta

_WHITESPACE = " \t\r\n"
#: Longest tag that is waited for; more text without its end is no tag.
MAX_TAG_CHARS = 512


class OutputParser(Protocol):
    """One output's state. `feed` after `finish` is a mistake."""

    def feed(self, text: str) -> list[Event]:
        """Events that became certain with this piece of text."""
        ...

    def finish(self) -> list[Event]:
        """The output ends here, by itself or cut off: what was held back, and the beginning of an unfinished call."""
        ...


class NeedMoreText(Exception):
    """Raised by a state that cannot decide yet."""


class BufferedParser:
    """Runs `self._state` until it raises NeedMoreText. A state is a method that takes text off the buffer's front."""

    def __init__(self, state: Callable[[], None]) -> None:
        self._text = ""
        self._state = state
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        self._text += text
        try:
            while self._text:
                self._state()
        except NeedMoreText:
            pass
        return self._drain()

    def finish(self) -> list[Event]:
        self._close()
        self._text = ""
        return self._drain()

    def _close(self) -> None:
        """Report what the end of the output makes certain."""
        raise NotImplementedError

    def _take(self, num_chars: int) -> str:
        taken, self._text = self._text[:num_chars], self._text[num_chars:]
        return taken

    def _emit(self, event: Event) -> None:
        """Append an event; text that continues the event before joins it, empty text is none."""
        if isinstance(event, ReasoningDelta | ContentDelta | ToolCallArgumentsDelta) and not event.text:
            return
        last = self._events[-1] if self._events else None
        match last, event:
            case (ReasoningDelta(a), ReasoningDelta(b)):
                self._events[-1] = ReasoningDelta(a + b)
            case (ContentDelta(a), ContentDelta(b)):
                self._events[-1] = ContentDelta(a + b)
            case (ToolCallArgumentsDelta(i, a), ToolCallArgumentsDelta(j, b)) if i == j:
                self._events[-1] = ToolCallArgumentsDelta(i, a + b)
            case _:
                self._events.append(event)

    def _content(self, text: str) -> None:
        self._emit(ContentDelta(text))

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class PlainParser(BufferedParser):
    """No format: everything is content."""

    def __init__(self) -> None:
        super().__init__(self._in_content)

    def _in_content(self) -> None:
        self._content(self._take(len(self._text)))

    def _close(self) -> None:
        pass


def partial_length(text: str, markers: Iterable[str]) -> int:
    """Length of the longest end of `text` with which one of `markers` could begin (the whole marker not counted)."""
    longest = 0
    for marker in markers:
        for length in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest


def find_first(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """Where the leftmost of `markers` stands, and which it is."""
    found = [(position, marker) for marker in markers if (position := text.find(marker, start)) >= 0]
    return min(found, default=None)


def marker_at(text: str, position: int, markers: Iterable[str]) -> str | None:
    """Which of `markers` stands at `position`; NeedMoreText while the text ends before that can be said."""
    is_open = False
    for marker in markers:
        if text.startswith(marker, position):
            return marker
        is_open = is_open or marker.startswith(text[position:])
    if is_open:
        raise NeedMoreText
    return None


def skip_whitespace(text: str, start: int = 0) -> int:
    """Position of the first character that is no white space; NeedMoreText when there is none yet."""
    rest = text[start:].lstrip(_WHITESPACE)
    if not rest:
        raise NeedMoreText
    return len(text) - len(rest)


def tag_end(text: str, start: int) -> int | None:
    """Position behind the `>` that ends the tag begun at `start`; None when it is too long to be a tag."""
    end = text.find(">", start, start + MAX_TAG_CHARS)
    if end >= 0:
        return end + 1
    if len(text) - start >= MAX_TAG_CHARS:
        return None
    raise NeedMoreText
