"""One call as a JSON object, `{"name": …, "arguments": {…}}`, read in pieces into a CallSink.

Not responsible for what stands around the object.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tokenmill.text.parsers.calls import CallSink
from tokenmill.text.parsers.json_scan import JsonScanner

_WHITESPACE = " \t\r\n"
_ARGUMENT_KEYS = ("arguments", "parameters")


class NoCallError(ValueError):
    """The text is no call, as its character at `position` shows."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class CallEnvelope:
    """
    known_keys           other keys make it no call; None: they are skipped
    requires_arguments   an object without arguments is no call
    has_arguments        they have begun
    """

    def __init__(
        self, calls: CallSink, *, known_keys: frozenset[str] | None = None, requires_arguments: bool = False
    ) -> None:
        self.is_complete = False
        self._calls = calls
        self._known_keys = known_keys
        self._requires_arguments = requires_arguments
        self._state: Callable[[str, int], int] = self._at_brace
        self._is_first = True
        self._key = ""
        self._scanner = JsonScanner()
        self._value: list[str] = []
        self._held: list[str] = []
        self.has_arguments = False
        self._is_streaming = False

    def feed(self, text: str) -> int:
        """Read on; returns how many characters belong to the object. NoCallError: this is no call."""
        position = 0
        while position < len(text) and not self.is_complete:
            position = self._state(text, position)
        return position

    def _at_brace(self, text: str, position: int) -> int:
        if text[position] not in _WHITESPACE:
            if text[position] != "{":
                raise NoCallError(f"{text[position]!r} where an object belongs", position)
            self._state = self._at_key
        return position + 1

    # -- keys --

    def _at_key(self, text: str, position: int) -> int:
        if text[position] in _WHITESPACE:
            return position + 1
        if text[position] == "}" and self._is_first:
            return self._finish(position)
        if text[position] != '"':
            raise NoCallError(f"{text[position]!r} where a key belongs", position)
        self._is_first = False
        self._begin_value()
        self._state = self._in_key
        return position

    def _in_key(self, text: str, position: int) -> int:
        position = self._scan(text, position)
        if self._scanner.is_complete:
            self._key = json.loads("".join(self._value))
            if self._known_keys is not None and self._key not in self._known_keys:
                raise NoCallError(f"{self._key!r} is no key of a call", position)
            self._state = self._at_colon
        return position

    def _at_colon(self, text: str, position: int) -> int:
        if text[position] == ":":
            self._state = self._at_value
        elif text[position] not in _WHITESPACE:
            raise NoCallError(f"{text[position]!r} where a colon belongs", position)
        return position + 1

    # -- values --

    def _begin_value(self) -> None:
        self._scanner = JsonScanner()
        self._value.clear()

    def _scan(self, text: str, position: int) -> int:
        position, piece = self._scanner.feed(text, position)
        self._value.append(piece)
        if self._is_streaming:
            self._add_arguments("".join(self._value))
            self._value.clear()
        if self._scanner.error is not None:
            raise NoCallError(self._scanner.error, position)
        return position

    def _at_value(self, text: str, position: int) -> int:
        if text[position] in _WHITESPACE:
            return position + 1
        is_arguments = self._key in _ARGUMENT_KEYS
        if (is_arguments and self.has_arguments) or (self._key == "name" and self._calls.has_name):
            raise NoCallError(f"{self._key!r} stands twice", position)
        self.has_arguments = self.has_arguments or is_arguments
        self._is_streaming = is_arguments and text[position] == "{"
        self._begin_value()
        self._state = self._in_value
        return position

    def _in_value(self, text: str, position: int) -> int:
        position = self._scan(text, position)
        if self._scanner.is_complete:
            if not self._is_streaming:
                self._take_value("".join(self._value), position)
            self._is_streaming = False
            self._state = self._after_value
        return position

    def _take_value(self, text: str, position: int) -> None:
        value = json.loads(text)
        if self._key == "name":
            if not isinstance(value, str) or not value:
                raise NoCallError("the name of a call is no text", position)
            self._calls.start(value)
            self._add_arguments("".join(self._held))
            self._held.clear()
        elif self._key in _ARGUMENT_KEYS:
            inner = "{}" if value is None else _inner_object(value)
            if inner is None:
                raise NoCallError("the arguments are no object", position)
            self._add_arguments(inner)

    def _add_arguments(self, text: str) -> None:
        if self._calls.has_name:
            self._calls.arguments(text)
        else:
            self._held.append(text)

    def _after_value(self, text: str, position: int) -> int:
        if text[position] == "}":
            return self._finish(position)
        if text[position] == ",":
            self._state = self._at_key
        elif text[position] not in _WHITESPACE:
            raise NoCallError(f"{text[position]!r} where a comma or the end of the object belongs", position)
        return position + 1

    def _finish(self, position: int) -> int:
        if not self._calls.has_name or (self._requires_arguments and not self.has_arguments):
            raise NoCallError("the object names no function or holds no arguments", position)
        if not self.has_arguments:
            self._calls.arguments("{}")
        self.is_complete = True
        return position + 1


def _inner_object(value: object) -> str | None:
    """Some models write the arguments as a string that holds their JSON; None: it holds no object."""
    if not isinstance(value, str) or not value.strip().startswith("{"):
        return None
    text = value.strip()
    scanner = JsonScanner()
    end, out = scanner.feed(text)
    return out if scanner.is_complete and end == len(text) else None
