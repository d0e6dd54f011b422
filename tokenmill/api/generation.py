"""One generation: n choices of some prompts run side by side, their events in one queue; streaming and not share it.

Not responsible for: tokenising prompts (model_service.py), how events look to a client (shapes.py), where requests
run (operations).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Self

import msgspec

from tokenmill.api.ports import DispatcherPort
from tokenmill.api.reading import ChoiceReader, Reading
from tokenmill.api.request_metrics import RequestMetrics, RequestTrack
from tokenmill.core.clock import Clock
from tokenmill.core.errors import InternalError, UnavailableError, from_code
from tokenmill.core.grammar import Grammar
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, SamplingParams, TokenDelta
from tokenmill.text.logprobs import TextLogprob
from tokenmill.text.output import OutputProcessor, TextDelta
from tokenmill.text.parsers.events import Event
from tokenmill.text.tokenizer import Tokenizer

#: Events that may wait for a slow reader before the pumps stop reading too, so that the dispatcher's limit counts.
_MAX_QUEUED_EVENTS = 256


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """`text` is what the client sent, None when it sent ids."""

    token_ids: list[int]
    block_hashes: list[bytes]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one choice gained. `num_output_tokens` is a running total, fields without a note are news.

    index                 of the choice in the answer: prompt * n + choice of that prompt
    num_cached_tokens     on the first delta
    stop_reason           the stop string or token id that ended it; None for end-of-sequence
    events                what `text` means: reasoning, content, tool calls; of chats only
    has_whole_calls       with finish_reason: it made calls, and none of them was cut off
    num_reasoning_tokens  running total
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprob, ...] | None = None
    prompt_logprobs: tuple[TextLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    events: tuple[Event, ...] = ()
    has_whole_calls: bool = False
    num_reasoning_tokens: int = 0


def expand(
    request_id: str,
    card: ModelCard,
    prompts: Sequence[EncodedPrompt],
    sampling: SamplingParams,
    *,
    max_tokens: Sequence[int],
    seed: int,
    arrival_s: float,
    priority: int = 0,
    cache_salt: str | None = None,
    tenant: str | None = None,
    session_id: str | None = None,
    parent_session_id: str | None = None,
    budget_usd: float | None = None,
    grammar: Grammar | None = None,
    prediction_token_ids: Sequence[int] = (),
) -> list[Request]:
    """The core requests of every choice; request i of the list makes choice i of the answer.

    budget_usd  of the session; without one of the answer: each choice gets its part
    """
    if budget_usd is not None and session_id is None:
        budget_usd /= sampling.n * len(prompts)
    return [
        Request(
            request_id=f"{request_id}-{p * sampling.n + i}",
            model=card.name,
            prompt_token_ids=prompt.token_ids,
            sampling=msgspec.structs.replace(sampling, n=1, max_tokens=room),
            seed=seed,
            choice_index=i,
            priority=priority,
            arrival_s=arrival_s,
            eos_token_ids=card.eos_token_ids,
            block_hashes=prompt.block_hashes,
            cache_salt=cache_salt,
            tenant=tenant,
            session_id=session_id,
            parent_session_id=parent_session_id,
            budget_usd=budget_usd,
            grammar=grammar,
            prediction_token_ids=list(prediction_token_ids),
        )
        for p, (prompt, room) in enumerate(zip(prompts, max_tokens, strict=True))
        for i in range(sampling.n)
    ]


class Generation:
    """Runs inside `async with`; leaving it aborts whatever has not ended. One reader.

    reading  how text becomes events; None: there are none
    """

    def __init__(
        self,
        dispatcher: DispatcherPort,
        requests: Sequence[Request],
        tokenizer: Tokenizer | None,
        metrics: RequestMetrics,
        clock: Clock,
        reading: Reading | None = None,
    ) -> None:
        self.requests = requests
        self.num_output_tokens = [0] * len(requests)
        self.num_cached_tokens = [0] * len(requests)
        self.num_reasoning_tokens = [0] * len(requests)
        self.counts_reasoning = reading is not None and reading.make_counter is not None
        self._dispatcher = dispatcher
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._clock = clock
        self._reading = reading
        self._num_open = len(requests)
        self._failure: Exception | None = None
        self._events: asyncio.Queue[ChoiceDelta | Exception] = asyncio.Queue(_MAX_QUEUED_EVENTS)
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._pumps = [asyncio.create_task(self._pump(i, request)) for i, request in enumerate(self.requests)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def next(self) -> list[ChoiceDelta]:
        """Wait for news and return all there is, oldest first; [] when every choice has ended.

        Safe to cancel: nothing is lost. A choice that failed raises its typed error, after the news before it.
        """
        if self._failure is not None:
            raise self._failure
        if self._num_open == 0:
            return []
        deltas: list[ChoiceDelta] = []
        event: ChoiceDelta | Exception = await self._events.get()
        while isinstance(event, ChoiceDelta):
            self._account(event)
            deltas.append(event)
            if self._events.empty():
                return deltas
            event = self._events.get_nowait()
        self._failure = event
        if not deltas:
            raise event
        return deltas

    def _account(self, delta: ChoiceDelta) -> None:
        self.num_output_tokens[delta.index] = delta.num_output_tokens
        self.num_reasoning_tokens[delta.index] = delta.num_reasoning_tokens
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens[delta.index] = delta.num_cached_tokens
        if delta.finish_reason is not None:
            self._num_open -= 1

    async def _pump(self, index: int, request: Request) -> None:
        """Move one choice's tokens into the queue; its failure is an event like any other."""
        track = self._metrics.track(request.model, len(request.prompt_token_ids), request.arrival_s)
        try:
            async with aclosing(self._dispatcher.generate(request)) as deltas:
                await self._move(index, request, deltas, track)
        except Exception as error:
            track.reason = FinishReason.ERROR
            await self._events.put(error)
        finally:
            track.finish()
            self._dispatcher.ledger.observe(request.request_id, track.outcome())

    async def _move(self, index: int, request: Request, deltas: AsyncIterator[TokenDelta], track: RequestTrack) -> None:
        processor = OutputProcessor(self._tokenizer, request.prompt_token_ids, request.sampling)
        reader = None if self._reading is None else ChoiceReader(self._reading)
        async for delta in deltas:
            _raise_error(delta)
            if delta.queue_s is not None:
                track.queued(delta.queue_s)
            text = processor.process(delta)
            track.output(text.num_output_tokens, self._clock.now())
            track.reason = text.finish_reason or track.reason
            await self._events.put(await _choice_delta(index, delta, text, reader))
            if text.finish_reason is not None:
                return
        raise InternalError(f"the stream of request {request.request_id} broke off without a reason")


def _raise_error(delta: TokenDelta) -> None:
    if delta.finish_reason is FinishReason.ERROR:
        code, message = delta.error or ("internal_error", "the worker gave no reason")
        raise from_code(code, message, delta.error_param)
    if delta.finish_reason is FinishReason.ABORT:
        raise UnavailableError("the server stopped this request before its end: send it again")


async def _choice_delta(index: int, delta: TokenDelta, text: TextDelta, reader: ChoiceReader | None) -> ChoiceDelta:
    events: tuple[Event, ...] = ()
    if reader is not None:
        events = reader.read(text.text, text.token_ids, is_end=text.finish_reason is not None)
        if text.finish_reason is FinishReason.STOP:
            await reader.keep()
    return ChoiceDelta(
        index=index,
        text=text.text,
        token_ids=tuple(text.token_ids),
        logprobs=text.logprobs,
        prompt_logprobs=text.prompt_logprobs,
        finish_reason=text.finish_reason,
        stop_reason=text.stop_reason,
        num_output_tokens=text.num_output_tokens,
        num_cached_tokens=delta.num_cached_tokens,
        events=events,
        has_whole_calls=reader is not None and text.finish_reason is not None and reader.has_whole_calls,
        num_reasoning_tokens=0 if reader is None else reader.num_reasoning_tokens,
    )


def merge(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """Consecutive deltas of one choice as one. merge(all of them) is the non-streaming answer."""
    if len(deltas) == 1:
        return deltas[0]
    first, last = deltas[0], deltas[-1]
    assert all(delta.index == first.index for delta in deltas), "deltas of one choice only"
    has_logprobs = any(delta.logprobs is not None for delta in deltas)
    return ChoiceDelta(
        index=first.index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs or () for delta in deltas)) if has_logprobs else None,
        prompt_logprobs=next((d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None), None),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_output_tokens=last.num_output_tokens,
        num_cached_tokens=next((d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None), None),
        events=tuple(chain.from_iterable(delta.events for delta in deltas)),
        has_whole_calls=last.has_whole_calls,
        num_reasoning_tokens=last.num_reasoning_tokens,
    )
