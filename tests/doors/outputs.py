"""Drawn outputs as parser events, and ways to cut them: what both doors' streams are tested with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tokenmill.text.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

#: On a machine that others use, too, slowness is no failure.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_texts = st.text(min_size=1, max_size=12)
_arguments = st.dictionaries(_texts, st.one_of(_texts, st.integers(), st.none(), st.lists(_texts)), max_size=3)
_runs = st.one_of(
    st.tuples(st.just("content"), _texts),
    st.tuples(st.just("reasoning"), _texts),
    st.tuples(st.just("call"), st.sampled_from(["f", "get_weather"]), _arguments.map(json.dumps)),
)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[list[Event], bool]:
    """Events of one output, and whether it was cut off (then its last call may lack its end)."""
    events: list[Event] = []
    num_calls = 0
    for kind, *rest in draw(st.lists(_runs, max_size=5)):
        if kind == "call":
            events += [ToolCallStart(num_calls, f"call_{num_calls}", rest[0])]
            events += [ToolCallArgumentsDelta(num_calls, rest[1]), ToolCallEnd(num_calls)]
            num_calls += 1
        else:
            events.append(ContentDelta(rest[0]) if kind == "content" else ReasoningDelta(rest[0]))
    is_cut_off = draw(st.booleans())
    if is_cut_off and events and isinstance(events[-1], ToolCallEnd):
        length = draw(st.integers(0, len(events[-2].text)))  # type: ignore[union-attr]
        start = events[-2].text[:length]  # type: ignore[union-attr]
        events[-2:] = [ToolCallArgumentsDelta(num_calls - 1, start)] if start else []
    return events, is_cut_off


def cut(events: Sequence[Event], data: st.DataObject) -> list[list[Event]]:
    """The same output in other pieces: texts cut anywhere, then grouped into feeds."""
    pieces: list[Event] = []
    for event in events:
        if isinstance(event, ContentDelta | ReasoningDelta | ToolCallArgumentsDelta) and len(event.text) > 1:
            at = data.draw(st.integers(1, len(event.text) - 1))
            pieces += [_with_text(event, event.text[:at]), _with_text(event, event.text[at:])]
        else:
            pieces.append(event)
    feeds: list[list[Event]] = [[]]
    for piece in pieces:
        feeds[-1].append(piece)
        if data.draw(st.booleans()):
            feeds.append([])
    return feeds


def _with_text(event: Any, text: str) -> Event:
    if isinstance(event, ToolCallArgumentsDelta):
        return ToolCallArgumentsDelta(event.index, text)
    return type(event)(text)
