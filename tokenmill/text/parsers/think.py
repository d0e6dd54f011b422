"""Reasoning between two tags, then the answer. Not responsible for tool calls.

The opening tag often stands in the prompt, so the output begins inside the reasoning and holds only the closing one.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenmill.text.parsers.base import (
    BufferedParser,
    NeedMoreText,
    find_first,
    marker_at,
    partial_length,
    skip_whitespace,
)
from tokenmill.text.parsers.events import ReasoningDelta

#: Says whether the text from a position on begins a tool call for certain; raises NeedMoreText while that is open.
CallOpening = Callable[[str, int], bool]


class ThinkParser(BufferedParser):
    """Text inside the tags is reasoning, verbatim; everything else is content, verbatim.

    starts_inside   the prompt opened the reasoning
    call_marker, is_call_opening
                    a tool call that begins inside the reasoning ends it too (models forget the closing tag); only
                    where the marker is followed by what must follow it, so that talk about the marker stays reasoning
    """

    def __init__(
        self,
        starts_inside: bool,
        open_tag: str = "<think>",
        close_tag: str = "</think>",
        call_marker: str | None = None,
        is_call_opening: CallOpening | None = None,
    ) -> None:
        super().__init__(self._at_start)
        self._is_inside = starts_inside
        self._open_tag = open_tag
        self._close_tag = close_tag
        self._ends = (close_tag,) if call_marker is None else (close_tag, call_marker)
        self._is_call_opening = is_call_opening

    def _at_start(self) -> None:
        """An opening tag counts only here; a second one after the prompt's own says nothing."""
        position = skip_whitespace(self._text)
        if marker_at(self._text, position, (self._open_tag,)):
            self._take(position + len(self._open_tag))
            self._is_inside = True
        self._state = self._in_reasoning if self._is_inside else self._in_content

    def _in_reasoning(self) -> None:
        found = find_first(self._text, self._ends)
        if found is None:
            self._reasoning(len(self._text) - partial_length(self._text, self._ends))
            raise NeedMoreText
        position, marker = found
        self._reasoning(position)
        if marker == self._close_tag:
            self._take(len(marker))
        elif self._is_call_opening is not None and not self._is_call_opening(self._text, 0):
            self._reasoning(len(marker))
            return
        self._state = self._in_content

    def _reasoning(self, num_chars: int) -> None:
        self._emit(ReasoningDelta(self._take(num_chars)))

    def _in_content(self) -> None:
        self._content(self._take(len(self._text)))

    def _close(self) -> None:
        if self._is_inside and self._state != self._in_content:
            is_call = self._text.startswith(self._ends[1:]) if self._ends[1:] else False
            self._reasoning(0 if is_call else len(self._text))  # of a call that was cut off nothing is known yet
        else:
            self._content(self._take(len(self._text)))
