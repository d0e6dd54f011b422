"""Running one generation and writing its answer, whole or as events. Both ways read the same deltas.

Not responsible for: what a choice looks like (shapes.py), what is generated (generation.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenmill.api.body import unless_gone
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import json_response
from tokenmill.api.generation import ChoiceDelta, Generation, merge
from tokenmill.api.shapes import Shape
from tokenmill.api.sse import KEEP_ALIVE, EventWriter, send_events
from tokenmill.api.usage import full_usage, token_usage
from tokenmill.core.errors import DeadlineError
from tokenmill.core.request import Request
from tokenmill.text.tokenizer import Tokenizer

#: A client that does not read must not keep its connection longer than this past the deadline.
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted request, ready to run.

    created_s       Unix time, shown to the client
    deadline_s      on the event loop's clock
    usage           which usage objects a stream carries
    """

    answer_id: str
    created_s: int
    model: str
    requests: Sequence[Request]
    tokenizer: Tokenizer | None
    shape: Shape
    deadline_s: float
    has_usage: bool = False
    has_continuous_usage: bool = False

    def generation(self, context: ApiContext) -> Generation:
        return Generation(context.dispatcher, self.requests, self.tokenizer, context.metrics, context.clock)

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created_s, "model": self.model}


async def whole_answer(job: Job, context: ApiContext, http: HttpRequest) -> Response:
    """The answer in one piece; when the client leaves before, the generation is aborted."""
    return json_response(await unless_gone(http.receive, _collect(job, context)))


async def _collect(job: Job, context: ApiContext) -> dict[str, Any]:
    by_choice: dict[int, list[ChoiceDelta]] = defaultdict(list)
    async with job.generation(context) as generation:
        while deltas := await _next(generation, job.deadline_s, job.deadline_s):
            for delta in deltas:
                by_choice[delta.index].append(delta)
    choices = [job.shape.choice(merge(by_choice[index])) for index in sorted(by_choice)]
    return job.head(job.shape.object) | {
        "choices": choices,
        "usage": full_usage(generation, context.dispatcher.ledger),
    }


async def _next(generation: Generation, until_s: float, deadline_s: float) -> list[ChoiceDelta] | None:
    """The next news; None when there is none by `until_s`; a typed error at the deadline."""
    timer = asyncio.timeout_at(min(until_s, deadline_s))
    try:
        async with timer:
            return await generation.next()
    except TimeoutError:
        if not timer.expired():
            raise
    if asyncio.get_running_loop().time() < deadline_s:
        return None
    raise DeadlineError("the answer was not complete within api.limits.request_timeout_s: ask for fewer tokens")


class StreamedAnswer(Response):
    """An ASGI response that starts when the first event is there, so that an early failure still has its status."""

    def __init__(self, job: Job, context: ApiContext, request_id: str) -> None:
        super().__init__()
        self._job = job
        self._context = context
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._context.lifecycle.request():
            await unless_gone(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        async with asyncio.timeout_at(self._job.deadline_s + _GRACE_S):
            async with self._job.generation(self._context) as generation, aclosing(self._events(generation)) as events:
                first = await anext(events)
                await send_events(send, first, events, self._request_id, self._context.metrics.count_error)

    async def _events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Bytes to send; a comment when nothing came for a while. Ends with the usage where it was asked for."""
        job, chunks = self._job, _Chunks(self._job, generation, self._context.config.stream_interval)
        loop, keep_alive_s = asyncio.get_running_loop(), self._context.config.keep_alive_s
        last_sent_s = loop.time()
        while (deltas := await _next(generation, last_sent_s + keep_alive_s, job.deadline_s)) != []:
            data = KEEP_ALIVE if deltas is None else b"".join(chunks.of(deltas))
            if data:
                yield data
                last_sent_s = loop.time()
        if job.has_usage:
            yield chunks.usage(full_usage(generation, self._context.dispatcher.ledger))


class _Chunks:
    """Turns deltas into events: merges those without anything to see into the next, up to `interval` tokens."""

    def __init__(self, job: Job, generation: Generation, interval: int) -> None:
        self._job = job
        self._generation = generation
        self._interval = interval
        self._writer = EventWriter(job.head(job.shape.chunk_object))
        self._pending: dict[int, list[ChoiceDelta]] = defaultdict(list)
        self._begun: set[int] = set()

    def of(self, deltas: Sequence[ChoiceDelta]) -> Iterator[bytes]:
        for delta in deltas:
            pending = self._pending[delta.index]
            pending.append(delta)
            if self._is_due(pending):
                choice = self._job.shape.chunk(merge(pending))
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
        if self._job.has_continuous_usage:
            return self._writer.event({"choices": [choice], "usage": token_usage(self._generation)})
        if self._job.has_usage:
            return self._writer.event({"choices": [choice], "usage": None})
        return self._writer.event({"choices": [choice]})

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._writer.event({"choices": [], "usage": usage})
