"""Calls as bare JSON objects that are the whole output (Llama 3.1 and later), several joined by semicolons.

Not responsible for reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenmill.text.parsers.base import BufferedParser, NeedMoreText, marker_at, skip_whitespace
from tokenmill.text.parsers.call_envelope import CallEnvelope, NoCallError
from tokenmill.text.parsers.calls import CallSink, new_call_id

_PYTHON_TAG = "<|python_tag|>"
_SEPARATORS = " \t\r\n;,"
#: An answer in JSON is told from a call by its first key that is none of these.
_KEYS = frozenset({"type", "id", "name", "parameters", "arguments"})


class Llama3JsonParser(BufferedParser):
    """An output that does not begin with such an object is content."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        super().__init__(self._at_start)
        self._calls = CallSink(self._emit, make_id)
        self._envelope = CallEnvelope(self._calls)

    def _at_start(self) -> None:
        position = skip_whitespace(self._text)
        marker = marker_at(self._text, position, (_PYTHON_TAG, "{"))
        if marker is None:
            self._state = self._in_content
            return
        self._open(position + (len(marker) if marker == _PYTHON_TAG else 0))

    def _open(self, num_chars: int) -> None:
        self._calls.read(self._take(num_chars))
        self._envelope = CallEnvelope(self._calls, known_keys=_KEYS, requires_arguments=True)
        self._state = self._in_object

    def _in_object(self) -> None:
        try:
            num_chars = self._envelope.feed(self._text)
        except NoCallError as error:
            self._calls.read(self._take(error.position))
            self._state = self._in_content if self._calls.fail() else self._in_late_failure
            return
        self._calls.read(self._take(num_chars))
        if self._envelope.is_complete:
            self._calls.end()
            self._state = self._after_object

    def _after_object(self) -> None:
        num_separators = len(self._text) - len(self._text.lstrip(_SEPARATORS))
        if num_separators == len(self._text):
            raise NeedMoreText
        if self._text[num_separators] == "{":
            self._open(num_separators)
        else:
            self._state = self._in_content

    def _in_late_failure(self) -> None:
        """The call's beginning is out: the rest goes after its arguments, and it never ends."""
        self._calls.arguments(self._take(len(self._text)))

    def _in_content(self) -> None:
        self._content(self._take(len(self._text)))

    def _close(self) -> None:
        if self._state != self._after_object:
            self._content(self._take(len(self._text)))
        if self._state == self._in_object and not self._envelope.has_arguments:
            self._calls.fail()  # without arguments it may as well be an answer in JSON
        self._calls.interrupt()


def tool_parser(
    tools: Sequence[Mapping[str, Any]] | None = None, make_id: Callable[[], str] = new_call_id
) -> Llama3JsonParser:
    return Llama3JsonParser(make_id)
