"""What the APIs with named events have in common: one choice, its deltas turned into events, the object at the end.

Not responsible for: what the events are (responses/, anthropic/), the connection (answer.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tokenmill.api.errors import encode_json
from tokenmill.api.generation import ChoiceDelta, Generation, merge
from tokenmill.api.sse import KEEP_ALIVE
from tokenmill.api.usage import full_usage
from tokenmill.core.errors import TokenmillError
from tokenmill.cost.ledger import Ledger
from tokenmill.text.parsers.events import ContentDelta, Event, ReasoningDelta, ToolCallArgumentsDelta

Json = dict[str, Any]


class NamedEventWriter(ABC):
    """An AnswerWriter. Subclasses say what the events of a beginning, of a delta, of the end and of a failure are.

    interval  output tokens per piece of a stream; the first and the last are never delayed
    """

    keep_alive, end = KEEP_ALIVE, b""

    def __init__(self, generation: Generation, ledger: Ledger, interval: int) -> None:
        self._generation = generation
        self._ledger = ledger
        self._interval = interval
        self._has_begun = False
        self._pending: list[ChoiceDelta] = []
        self._last: ChoiceDelta | None = None

    def whole(self, choices: Sequence[ChoiceDelta]) -> Json:
        (self._last,) = choices
        for events in (self._begin(), self._feed(self._last), self._finish(self._last)):
            deque(events, maxlen=0)
        return self._body()

    def news(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        data = self._beginning()
        for delta in deltas:
            self._pending.append(delta)
            if self._is_due(delta):
                merged = merge(self._pending)
                self._last = replace(merged, events=coalesce(merged.events))
                self._pending.clear()
                data += _bytes(self._feed(self._last))
        return data

    def finish(self) -> bytes:
        assert self._last is not None and self._last.finish_reason is not None, "the last delta says why it is"
        return _bytes(self._finish(self._last))

    def error(self, error: TokenmillError) -> bytes:
        return self._beginning() + _bytes(self._fail(error))

    def _beginning(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        return _bytes(self._begin())

    def _is_due(self, delta: ChoiceDelta) -> bool:
        if self._interval == 1 or self._last is None or delta.finish_reason is not None:
            return True
        return sum(len(pending.token_ids) for pending in self._pending) >= self._interval

    def _usage(self) -> Json:
        return full_usage(self._generation, self._ledger)

    @abstractmethod
    def _body(self) -> Json: ...

    @abstractmethod
    def _begin(self) -> Iterator[Json]: ...

    @abstractmethod
    def _feed(self, delta: ChoiceDelta) -> Iterator[Json]: ...

    @abstractmethod
    def _finish(self, last: ChoiceDelta) -> Iterator[Json]: ...

    @abstractmethod
    def _fail(self, error: TokenmillError) -> Iterator[Json]: ...


def coalesce(events: Iterable[Event]) -> tuple[Event, ...]:
    """The same events, with texts that follow each other joined."""
    result: list[Event] = []
    for event in events:
        match result[-1] if result else None, event:
            case (ContentDelta(a), ContentDelta(b)):
                result[-1] = ContentDelta(a + b)
            case (ReasoningDelta(a), ReasoningDelta(b)):
                result[-1] = ReasoningDelta(a + b)
            case (ToolCallArgumentsDelta(i, a), ToolCallArgumentsDelta(j, b)) if i == j:
                result[-1] = ToolCallArgumentsDelta(i, a + b)
            case _:
                result.append(event)
    return tuple(result)


def _bytes(events: Iterable[Json]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), encode_json(event)) for event in events)
