"""Running one generation and sending its answer, whole or as events. Both ways read the same deltas.

Not responsible for: how an answer is worded (an `AnswerWriter` of each API), what is generated (generation.py).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenmill.api.body import unless_gone
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import json_response
from tokenmill.api.generation import ChoiceDelta, Generation, merge
from tokenmill.api.reading import Reading
from tokenmill.api.retell import Paths, retelling
from tokenmill.api.sse import send_events
from tokenmill.core.errors import DeadlineError, TokenmillError
from tokenmill.core.request import Request
from tokenmill.text.tokenizer import Tokenizer

#: A client that does not read must not keep its connection longer than this past the deadline.
_GRACE_S = 5.0


class AnswerWriter(Protocol):
    """How one API words one answer.

    keep_alive  sent after a silence
    end         sent after everything else when nothing went wrong
    """

    keep_alive: bytes
    end: bytes

    def whole(self, choices: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """The answer without streaming, from each choice's deltas merged."""
        ...

    def news(self, deltas: Sequence[ChoiceDelta]) -> bytes:
        """Events of the next deltas; b"" when there is nothing to see in them yet."""
        ...

    def finish(self) -> bytes:
        """Events after the last delta."""
        ...

    def error(self, error: TokenmillError) -> bytes:
        """The last event of a stream that fails after its beginning."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted request, ready to run.

    deadline_s  on the event loop's clock
    writer      of its answer
    reading     how text becomes events; None: there are none
    paths       how the client calls the fields that errors name, where it sent no chat request itself
    """

    requests: Sequence[Request]
    tokenizer: Tokenizer | None
    deadline_s: float
    writer: Callable[[Generation], AnswerWriter]
    reading: Reading | None = None
    paths: Paths = field(default_factory=dict)

    def generation(self, context: ApiContext) -> Generation:
        return Generation(
            context.dispatcher, self.requests, self.tokenizer, context.metrics, context.clock, self.reading
        )


async def whole_answer(job: Job, context: ApiContext, http: HttpRequest) -> Response:
    """The answer in one piece; when the client leaves before, the generation is aborted."""
    with retelling(job.paths):
        return json_response(await unless_gone(http.receive, _collect(job, context)))


async def _collect(job: Job, context: ApiContext) -> dict[str, Any]:
    by_choice: dict[int, list[ChoiceDelta]] = defaultdict(list)
    async with job.generation(context) as generation:
        while deltas := await _next(generation, job.deadline_s, job.deadline_s):
            for delta in deltas:
                by_choice[delta.index].append(delta)
    return job.writer(generation).whole([merge(by_choice[index]) for index in sorted(by_choice)])


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
        job = self._job
        async with asyncio.timeout_at(job.deadline_s + _GRACE_S), job.generation(self._context) as generation:
            writer = job.writer(generation)
            async with aclosing(self._events(generation, writer)) as events:
                first = await anext(events)
                await send_events(send, first, events, writer, self._request_id, self._context.metrics.count_error)

    async def _events(self, generation: Generation, writer: AnswerWriter) -> AsyncGenerator[bytes, None]:
        """Bytes to send; a sign of life when nothing came for a while."""
        loop, keep_alive_s = asyncio.get_running_loop(), self._context.config.keep_alive_s
        last_sent_s = loop.time()
        with retelling(self._job.paths):
            while (deltas := await _next(generation, last_sent_s + keep_alive_s, self._job.deadline_s)) != []:
                data = writer.keep_alive if deltas is None else writer.news(deltas)
                if data:
                    yield data
                    last_sent_s = loop.time()
        if data := writer.finish():
            yield data
