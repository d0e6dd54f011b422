"""Reads one JSON value out of a text that comes in pieces: where it ends, and that it is JSON so far.

Control characters inside strings (models write raw line breaks) are escaped on the way. Not responsible for meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_WHITESPACE = " \t\r\n"
_LITERALS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBER_PREFIX = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?)?")
_ATOM_CHARS = frozenset("-+.0123456789eEtrufalsn")
_PLAIN = re.compile(r'[^"\\]+')
_CONTROL = {code: json.dumps(chr(code))[1:-1] for code in range(0x20)}
_HEX = frozenset("0123456789abcdefABCDEF")
MAX_DEPTH = 256


class JsonScanner:
    """`feed` until `is_complete` or `error`. A number on its own ends only where other text follows it."""

    def __init__(self) -> None:
        self.is_complete = False
        self.error: str | None = None
        self._closers: list[str] = []
        self._state: Callable[[str, int], int] = self._at_value
        self._may_close = False
        self._is_key = False
        self._atom = ""
        self._escape = ""
        self._out: list[str] = []

    def feed(self, text: str, start: int = 0) -> tuple[int, str]:
        """Read on from `start`. Returns where reading stopped and the JSON read.

        With `error` set, it stopped at the first character that no JSON value can have there.
        """
        position = start
        while position < len(text) and not self.is_complete and self.error is None:
            position = self._state(text, position)
        out = "".join(self._out)
        self._out.clear()
        return position, out

    def _wrong(self, position: int, error: str) -> int:
        self.error = error
        return position

    def _keep(self, text: str, position: int, num_chars: int = 1) -> int:
        self._out.append(text[position : position + num_chars])
        return position + num_chars

    # -- values --

    def _at_value(self, text: str, position: int) -> int:
        char = text[position]
        if char in _WHITESPACE:
            return self._keep(text, position)
        if self._may_close and char == "]":
            return self._leave(text, position)
        self._may_close = False
        if char in "{[":
            if len(self._closers) == MAX_DEPTH:
                return self._wrong(position, f"nested deeper than {MAX_DEPTH}")
            self._closers.append("}" if char == "{" else "]")
            self._may_close = True
            self._state = self._at_key if char == "{" else self._at_value
        elif char == '"':
            self._is_key = False
            self._state = self._in_string
        else:
            self._atom = ""
            self._state = self._in_atom
            return position
        return self._keep(text, position)

    def _in_atom(self, text: str, position: int) -> int:
        """A number, true, false or null; the character after it belongs to what follows."""
        if text[position] not in _ATOM_CHARS:
            if not _is_atom(self._atom):
                return self._wrong(position, f"{self._atom[:20] or text[position]!r} is no JSON value")
            self._end_value()
            return position
        if not _may_be_atom(self._atom + text[position]):
            return self._wrong(position, f"{text[position]!r} in the middle of a JSON value")
        self._atom += text[position]
        return self._keep(text, position)

    def _end_value(self) -> None:
        if not self._closers:
            self.is_complete = True
        self._state = self._after_value

    def _after_value(self, text: str, position: int) -> int:
        char = text[position]
        if char in _WHITESPACE:
            return self._keep(text, position)
        if char == self._closers[-1]:
            return self._leave(text, position)
        if char != ",":
            return self._wrong(position, f"{char!r} where a comma or {self._closers[-1]!r} belongs")
        self._may_close = False
        self._state = self._at_key if self._closers[-1] == "}" else self._at_value
        return self._keep(text, position)

    def _leave(self, text: str, position: int) -> int:
        self._closers.pop()
        self._end_value()
        return self._keep(text, position)

    # -- keys --

    def _at_key(self, text: str, position: int) -> int:
        char = text[position]
        if char in _WHITESPACE:
            return self._keep(text, position)
        if self._may_close and char == "}":
            return self._leave(text, position)
        if char != '"':
            return self._wrong(position, f"{char!r} where a key belongs")
        self._may_close = False
        self._is_key = True
        self._state = self._in_string
        return self._keep(text, position)

    def _at_colon(self, text: str, position: int) -> int:
        char = text[position]
        if char == ":":
            self._state = self._at_value
        elif char not in _WHITESPACE:
            return self._wrong(position, f"{char!r} where a colon belongs")
        return self._keep(text, position)

    # -- strings --

    def _in_string(self, text: str, position: int) -> int:
        match = _PLAIN.match(text, position)
        if match:
            self._out.append(match[0].translate(_CONTROL))
            return match.end()
        if text[position] == "\\":
            self._escape = ""
            self._state = self._in_escape
        elif self._is_key:
            self._state = self._at_colon
        else:
            self._end_value()
        return self._keep(text, position)

    def _in_escape(self, text: str, position: int) -> int:
        char = text[position]
        is_valid = char in _HEX if self._escape else char in '"\\/bfnrtu'
        if not is_valid:
            return self._wrong(position, f"\\{self._escape}{char} is no escape")
        self._escape += char
        if self._escape[0] != "u" or len(self._escape) == 5:
            self._state = self._in_string
        return self._keep(text, position)


def _is_atom(text: str) -> bool:
    return text in _LITERALS or _NUMBER.fullmatch(text) is not None


def _may_be_atom(text: str) -> bool:
    """Whether a number or a literal can begin so."""
    return any(word.startswith(text) for word in _LITERALS) or _NUMBER_PREFIX.fullmatch(text) is not None
