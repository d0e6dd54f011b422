"""Calls as a Python list, `[f(a=1), g()]`, that is the whole output (Llama 3.2 and 4, ToolACE and relatives).

The list is held until it closes. Not responsible for reasoning.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.text.parsers.base import MAX_TAG_CHARS, BufferedParser, NeedMoreText, marker_at, skip_whitespace
from tokenmill.text.parsers.calls import CallSink, new_call_id

_START_TAG, _END_TAG = "<|python_start|>", "<|python_end|>"
_OPENING = re.compile(r"\[\s*[A-Za-z_][\w.-]*\(")
_OPENING_PREFIX = re.compile(r"\[\s*(?:[A-Za-z_][\w.-]*)?")
_LITERAL_NAMES = {"true": True, "false": False, "null": None}
_PLAIN = re.compile(r"[^\[\](){}'\"\\,]+")


class PythonicParser(BufferedParser):
    def __init__(self, make_id: Callable[[], str]) -> None:
        super().__init__(self._at_start)
        self._calls = CallSink(self._emit, make_id)
        self._lead = ""
        self._scan = _ListScan()

    def _at_start(self) -> None:
        position = skip_whitespace(self._text)
        marker = marker_at(self._text, position, (_START_TAG, "["))
        if marker == _START_TAG and not self._lead:
            self._lead = self._take(position + len(marker))
        elif marker == "[" and self._is_call_list(position):
            self._lead += self._take(position)
            self._state = self._in_list
        else:
            self._give_up()

    def _is_call_list(self, position: int) -> bool:
        """A citation or a list of numbers begins with a bracket too."""
        if _OPENING.match(self._text, position):
            return True
        if _OPENING_PREFIX.fullmatch(self._text, position) and len(self._text) - position < MAX_TAG_CHARS:
            raise NeedMoreText
        return False

    def _give_up(self) -> None:
        self._content(self._lead)
        self._lead = ""
        self._state = self._in_content

    def _in_list(self) -> None:
        self._scan.advance(self._text)
        if self._scan.end is None and not self._scan.is_broken:
            raise NeedMoreText
        calls = None if self._scan.end is None else _parse(self._text[: self._scan.end])
        if calls is None or self._scan.end is None:
            self._give_up()
            return
        self._take(self._scan.end)
        self._lead = ""
        self._report(calls)
        self._state = self._after_list

    def _report(self, calls: Sequence[_Call]) -> None:
        for call in calls:
            self._calls.start(call.name)
            self._calls.arguments(call.arguments)
            self._calls.end()

    def _after_list(self) -> None:
        position = skip_whitespace(self._text)
        marker = marker_at(self._text, position, (_END_TAG,))
        if marker is not None:
            self._take(position + len(marker))
        self._state = self._in_content

    def _in_content(self) -> None:
        self._content(self._take(len(self._text)))

    def _close(self) -> None:
        if self._state == self._in_list:
            calls = _parse(self._text[: self._scan.last_call_end] + "]")
            if calls is None:
                self._give_up()
                self._in_content()
            else:
                self._report(calls)
        elif self._state != self._after_list:
            self._content(self._lead + self._take(len(self._text)))


class _ListScan:
    """Finds the bracket that closes a list, whatever strings and brackets stand inside.

    end             position behind it; None: not here yet
    last_call_end   position behind the last whole element
    is_broken       brackets that do not match: no list
    """

    def __init__(self) -> None:
        self.end: int | None = None
        self.last_call_end = 1
        self.is_broken = False
        self._position = 0
        self._closers: list[str] = []
        self._quote = ""

    def advance(self, text: str) -> None:
        while self._position < len(text) and self.end is None and not self.is_broken:
            if self._quote:
                if not self._in_string(text):
                    return
            else:
                self._outside(text)

    def _in_string(self, text: str) -> bool:
        char = text[self._position]
        if char == "\\" and self._position + 1 == len(text):
            return False
        if char == self._quote:
            self._quote = ""
        self._position += 2 if char == "\\" else 1
        return True

    def _outside(self, text: str) -> None:
        char = text[self._position]
        plain = _PLAIN.match(text, self._position)
        self._position = plain.end() if plain else self._position + 1
        if char in "'\"":
            self._quote = char
        elif char in "([{":
            self._closers.append({"(": ")", "[": "]", "{": "}"}[char])
        elif char in ")]}":
            self._close(char)

    def _close(self, char: str) -> None:
        if self._closers.pop() != char:
            self.is_broken = True
        elif not self._closers:
            self.end = self._position
        elif len(self._closers) == 1:
            self.last_call_end = self._position


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: str


def _parse(text: str) -> list[_Call] | None:
    """The calls of a list as Python writes it; None when it is none, or holds what JSON cannot say."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings that Python does not know
            body = ast.parse(text, mode="eval").body
        return [_call(node) for node in body.elts] if isinstance(body, ast.List) and body.elts else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> _Call:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no call with named arguments")
    arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return _Call(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value) if value is None or isinstance(value, str | int | float):
            return value
        case ast.Name(name) if name in _LITERAL_NAMES:
            return _LITERAL_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value)) if isinstance(value, int | float):
            return -value
        case ast.List(elements) | ast.Tuple(elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys, values):
            names = [_literal(key) if key is not None else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("keys are texts")
            return dict(zip(names, (_literal(value) for value in values), strict=True))
    raise ValueError("no literal")


def tool_parser(
    tools: Sequence[Mapping[str, Any]] | None = None, make_id: Callable[[], str] = new_call_id
) -> PythonicParser:
    return PythonicParser(make_id)
