"""An answer in OpenAI's words: one object, or chunks that merge what has nothing to see in it. One writer per answer.

Not responsible for: what a choice looks like (shapes.py), the connection (answer.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenmill.api.generation import ChoiceDelta, Generation, merge
from tokenmill.api.shapes import Shape
from tokenmill.api.sse import DONE, KEEP_ALIVE, EventWriter, error_event
from tokenmill.api.usage import full_usage, token_usage
from tokenmill.core.errors import TokenmillError
from tokenmill.cost.ledger import Ledger


class ChunkWriter:
    """
    head                   keys that all objects of the answer share: id, created, model
    interval               output tokens per chunk
    has_usage              the last chunk of a stream carries it
    has_continuous_usage   and so does every other
    """

    keep_alive, end = KEEP_ALIVE, DONE

    def __init__(
        self,
        head: Mapping[str, Any],
        shape: Shape,
        generation: Generation,
        ledger: Ledger,
        *,
        interval: int,
        has_usage: bool,
        has_continuous_usage: bool,
    ) -> None:
        self._head = head
        self._shape = shape
        self._generation = generation
        self._ledger = ledger
        self._interval = interval
        self._has_usage = has_usage
        self._has_continuous_usage = has_continuous_usage
        self._writer = EventWriter({"object": shape.chunk_object, **head})
        self._pending: dict[int, list[ChoiceDelta]] = defaultdict(list)
        self._begun: set[int] = set()

    def whole(self, choices: Sequence[ChoiceDelta]) -> dict[str, Any]:
        return {
            "object": self._shape.object,
            **self._head,
            "choices": [self._shape.choice(choice) for choice in choices],
            "usage": full_usage(self._generation, self._ledger),
        }

    def news(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        return b"".join(self._chunks(deltas))

    def finish(self) -> bytes:
        if not self._has_usage:
            return b""
        return self._writer.event({"choices": [], "usage": full_usage(self._generation, self._ledger)})

    def error(self, error: TokenmillError) -> bytes:
        return error_event(error)

    def _chunks(self, deltas: Sequence[ChoiceDelta]) -> Iterator[bytes]:
        for delta in deltas:
            pending = self._pending[delta.index]
            pending.append(delta)
            if self._is_due(pending):
                choice = self._shape.chunk(merge(pending))
                if choice is not None:
                    pending.clear()
                    self._begun.add(delta.index)
                    yield self._event(choice)

    def _is_due(self, pending: Sequence[ChoiceDelta]) -> bool:
        last = pending[-1]
        if last.finish_reason is not None or last.index not in self._begun:
            return True
        return self._interval == 1 or sum(len(delta.token_ids) for delta in pending) >= self._interval

    def _event(self, choice: dict[str, Any]) -> bytes:
        if self._has_continuous_usage:
            return self._writer.event({"choices": [choice], "usage": token_usage(self._generation)})
        if self._has_usage:
            return self._writer.event({"choices": [choice], "usage": None})
        return self._writer.event({"choices": [choice]})
