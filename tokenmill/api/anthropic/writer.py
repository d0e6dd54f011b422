"""Words an answer as an Anthropic message or stream. Not responsible for: the events themselves (events.py)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from tokenmill.api.anthropic.events import MessageEvents, message_usage
from tokenmill.api.event_stream import NamedEventWriter
from tokenmill.api.generation import ChoiceDelta, Generation
from tokenmill.api.usage import token_usage
from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import FinishReason
from tokenmill.cost.ledger import Ledger

Json = dict[str, Any]
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


class MessageWriter(NamedEventWriter):
    """`request_id`: told to the client when the stream fails."""

    def __init__(self, generation: Generation, ledger: Ledger, interval: int, model: str, request_id: str) -> None:
        super().__init__(generation, ledger, interval)
        self._events = MessageEvents(f"msg_{uuid.uuid4().hex}", model)
        self._request_id = request_id

    def _body(self) -> Json:
        return self._events.body

    def _begin(self) -> Iterator[Json]:
        yield from self._events.begin(message_usage(token_usage(self._generation)))
        self.keep_alive = _PING  # no ping may come before the message

    def _feed(self, delta: ChoiceDelta) -> Iterator[Json]:
        return self._events.feed(delta.events)

    def _finish(self, last: ChoiceDelta) -> Iterator[Json]:
        usage = message_usage(self._usage())
        return self._events.end(last.finish_reason or FinishReason.STOP, last.stop_reason, usage)

    def _fail(self, error: TokenmillError) -> Iterator[Json]:
        return self._events.fail(error, self._request_id)
