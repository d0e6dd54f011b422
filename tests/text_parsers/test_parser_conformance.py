"""Every built-in parser passes the suite that plug-ins run; the suite finds what it should."""

from __future__ import annotations

import pytest

from tests.text_parsers.helpers import FORMATS, Format, cut, dsml_block
from tokenmill.text.parsers.base import OutputParser, PlainParser
from tokenmill.text.parsers.conformance import check_output_parser
from tokenmill.text.parsers.events import ContentDelta, Event, ToolCallArgumentsDelta, ToolCallEnd, ToolCallStart

_OUTPUTS = [
    "",
    "plain text, no markup",
    "a < b\n\n</think>\n\n",
    f"why</think>so\n\n{dsml_block([('f', {'a': 'x', 'b': 2}), ('g', {})])}",
    f"why</think>so\n\n{dsml_block([('f', {'a': 'x'})])}".replace('name="a"', "name=a"),
    '\n<tool_call>\n{"name": "f", "arguments": {"a": [1, "x"]}}\n</tool_call>\n<tool_call>{"name": 5}</tool_call>',
    "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
    '{"name": "f", "parameters": {"a": null}}; {"name": "g", "parameters": {}}',
    "[f(a=1, b='x'), g()] done",
]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_built_in_parsers_conform(format: Format) -> None:
    check_output_parser(format.make, _OUTPUTS)


class _Cutter(PlainParser):
    """Its content depends on the pieces."""

    def feed(self, text: str) -> list[Event]:
        return [ContentDelta(piece) for piece in cut(text, [1]) if piece.strip()]


class _Scripted:
    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def feed(self, text: str) -> list[Event]:
        return []

    def finish(self) -> list[Event]:
        return self._events


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (_Cutter, "cuts"),
        (lambda: _Scripted([ContentDelta("")]), "order"),
        (lambda: _Scripted([ToolCallStart(1, "x", "f")]), "order"),
        (lambda: _Scripted([ToolCallArgumentsDelta(0, "{}")]), "order"),
        (lambda: _Scripted([ToolCallStart(0, "x", "f"), ToolCallEnd(0), ToolCallEnd(0)]), "order"),
        (lambda: _Scripted([ToolCallStart(0, "x", "f"), ToolCallEnd(0)]), "cut off"),
    ],
)
def test_the_suite_finds_what_is_wrong(make: type[OutputParser], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_output_parser(make, ["a b", " x y z"])
