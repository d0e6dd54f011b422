"""What every output parser must do, as one function that a separate package runs on its own parser in its tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence

from tokenmill.text.parsers.base import OutputParser
from tokenmill.text.parsers.events import (
    ContentDelta,
    Event,
    ParsedMessage,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from tokenmill.text.parsers.json_scan import JsonScanner


def check_output_parser(make: Callable[[], OutputParser], outputs: Iterable[str], *, num_cuts: int = 20) -> None:
    """Raise AssertionError, naming the rule, unless parsers that `make` builds (call ids counted) obey all of them.

    outputs   texts to try: well formed, malformed, and without any markup
    """
    rng = random.Random(1)
    for text in outputs:
        whole = _message(make, [text])
        for _ in range(num_cuts):
            pieces = _cut(text, rng)
            assert _message(make, pieces) == whole, f"cuts: {pieces!r} and the whole text give different messages"
        assert _message(make, list(text)) == whole, f"cuts: characters and the whole of {text!r} differ"
        _check_cut_off(make, text, whole, rng)


def _cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(1, 6)))
    return [text[a:b] for a, b in itertools.pairwise([0, *places, len(text)])]


def _message(make: Callable[[], OutputParser], pieces: Sequence[str]) -> ParsedMessage:
    parser = make()
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    _check_order(events)
    return collect(events)


def _check_order(events: Sequence[Event]) -> None:
    """One call at a time: its start, its arguments, its end; no delta without text."""
    num_calls, is_open = 0, False
    for event in events:
        match event:
            case ContentDelta(text) | ReasoningDelta(text):
                assert text, "order: a delta without text"
            case ToolCallStart(index, call_id, name):
                assert index == num_calls and call_id and name, f"order: {event} as call {num_calls}"
                num_calls, is_open = num_calls + 1, True
            case ToolCallArgumentsDelta(index, text):
                assert text and is_open and index == num_calls - 1, f"order: {event} outside its call"
            case ToolCallEnd(index):
                assert is_open and index == num_calls - 1, f"order: {event} outside its call"
                is_open = False


def _check_cut_off(make: Callable[[], OutputParser], text: str, whole: ParsedMessage, rng: random.Random) -> None:
    """An output that breaks off has no call that the whole has not, and no whole call with half its arguments."""
    part = _message(make, [text[: rng.randint(0, len(text))]])
    for mine, full in zip(part.tool_calls, whole.tool_calls, strict=False):
        assert mine.name == full.name and full.arguments.startswith(mine.arguments), f"cut off: {mine} of {full}"
        scanner = JsonScanner()
        scanner.feed(mine.arguments)
        assert scanner.is_complete or not mine.is_complete, f"cut off: {mine} has no whole arguments"
