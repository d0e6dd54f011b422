"""Words an answer as a Responses object or stream. Not responsible for: the events themselves (events.py)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.api import logprobs as spelled
from tokenmill.api.event_stream import NamedEventWriter
from tokenmill.api.generation import ChoiceDelta, Generation
from tokenmill.api.responses.events import ResponseEvents
from tokenmill.api.responses.objects import response_usage
from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import FinishReason
from tokenmill.cost.ledger import Ledger

Json = dict[str, Any]


class ResponseWriter(NamedEventWriter):
    """
    body      the response object before there is output (objects.py)
    on_ended  told of the whole object, however the response ended
    """

    def __init__(
        self, generation: Generation, ledger: Ledger, interval: int, body: Json, on_ended: Callable[[Json], None]
    ) -> None:
        super().__init__(generation, ledger, interval)
        self._events = ResponseEvents(body, lambda prefix: prefix + uuid.uuid4().hex, lambda: int(time.time()))
        self._on_ended = on_ended

    def _body(self) -> Json:
        return self._events.body

    def _begin(self) -> Iterator[Json]:
        return self._events.begin()

    def _feed(self, delta: ChoiceDelta) -> Iterator[Json]:
        rows = None if delta.logprobs is None else spelled.chat_logprobs(delta.logprobs)["content"]
        return self._events.feed(delta.events, rows)

    def _finish(self, last: ChoiceDelta) -> Iterator[Json]:
        yield from self._events.end(last.finish_reason or FinishReason.STOP, response_usage(self._usage()))
        self._on_ended(self._events.body)

    def _fail(self, error: TokenmillError) -> Iterator[Json]:
        yield from self._events.fail(error)
        self._on_ended(self._events.body)
