"""Calls as JSON objects between `<tool_call>` tags (Hermes, Qwen 2.5 and 3). Not responsible for reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmill.text.parsers.base import (
    BufferedParser,
    NeedMoreText,
    find_first,
    marker_at,
    partial_length,
    skip_whitespace,
)
from tokenmill.text.parsers.call_envelope import CallEnvelope, NoCallError
from tokenmill.text.parsers.calls import CallSink, new_call_id

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_MAX_LEAD = 2


class HermesParser(BufferedParser):
    """Newlines around the tags belong to the markup: at most two before an opening one."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        super().__init__(self._in_content)
        self._calls = CallSink(self._emit, make_id)
        self._envelope = CallEnvelope(self._calls)

    def _in_content(self) -> None:
        position = self._text.find(_OPEN)
        is_call = position >= 0
        if not is_call:
            position = len(self._text) - partial_length(self._text, (_OPEN,))
        lead = 0
        while lead < min(_MAX_LEAD, position) and self._text[position - lead - 1] == "\n":
            lead += 1
        self._content(self._take(position - lead))
        if not is_call:
            raise NeedMoreText
        self._calls.read(self._take(lead + len(_OPEN)))
        self._envelope = CallEnvelope(self._calls)
        self._state = self._in_object

    def _in_object(self) -> None:
        try:
            num_chars = self._envelope.feed(self._text)
        except NoCallError as error:
            self._calls.read(self._take(error.position))
            self._fail()
            return
        self._calls.read(self._take(num_chars))
        if self._envelope.is_complete:
            self._state = self._after_object

    def _after_object(self) -> None:
        position = skip_whitespace(self._text)
        if marker_at(self._text, position, (_CLOSE,)) is None:
            self._fail()
            return
        self._take(position + len(_CLOSE))
        self._calls.end()
        self._state = self._in_content

    def _fail(self) -> None:
        self._state = self._in_verbatim if self._calls.fail() else self._in_late_failure

    def _in_verbatim(self) -> None:
        self._until_close(self._content)
        self._content(self._take(len(_CLOSE)))
        self._state = self._in_content

    def _in_late_failure(self) -> None:
        """The call's beginning is out: the rest goes after its arguments, and it never ends."""
        self._until_close(self._calls.arguments)
        self._take(len(_CLOSE))
        self._calls.interrupt()
        self._state = self._in_content

    def _until_close(self, give: Callable[[str], None]) -> None:
        found = find_first(self._text, (_CLOSE,))
        give(self._take(found[0] if found else len(self._text) - partial_length(self._text, (_CLOSE,))))
        if found is None:
            raise NeedMoreText

    def _close(self) -> None:
        if self._state == self._in_late_failure:
            self._calls.arguments(self._take(len(self._text)))
        elif self._state in (self._in_content, self._in_verbatim):
            self._content(self._take(len(self._text)))
        if self._state == self._after_object:  # whole, only its closing tag is missing
            self._calls.end()
        else:
            self._calls.interrupt()


def tool_parser(
    tools: Sequence[Mapping[str, Any]] | None = None, make_id: Callable[[], str] = new_call_id
) -> HermesParser:
    return HermesParser(make_id)
