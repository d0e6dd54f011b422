"""A dispatcher in this process: scripted tokens, a real ledger, and knobs for everything that can go wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path

from tokenmill.api.ledger_file import wall_epoch_s
from tokenmill.core.errors import TokenmillError
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import FinishReason, Request, TokenDelta, TokenLogprob
from tokenmill.core.wire import StepFrame, WorkerStats
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.health import Health
from tokenmill.operations.members import MemberState, MemberView

BYTE_TOKENIZER = Path(__file__).parents[1] / "data" / "byte-tokenizer"
RATE = DeviceRate(usd_per_hour=3.6, watts=100.0, source="test")
STEP_S = 0.001
BLOCK = 16


def card(name: str = "bytes", **changes: object) -> ModelCard:
    fields: dict[str, object] = {
        "architecture": "counting",
        "max_model_len": 4096,
        "kv_capacity_tokens": 2048,
        "max_num_seqs": 8,
        "vocab_size": 256,
        "block_size": BLOCK,
        "weights_version": "w1",
        "tokenizer_path": str(BYTE_TOKENIZER),
        "eos_token_ids": (0,),
        "created_s": 1_700_000_000,
    }
    return ModelCard(name=name, **(fields | changes))  # type: ignore[arg-type]


def ids(text: str | bytes) -> list[int]:
    """With the byte tokenizer a byte is its own token."""
    return list(text.encode() if isinstance(text, str) else text)


def alphabet(request: Request) -> Iterator[int]:
    """a b c … for ever; where it starts depends on seed and choice."""
    return (97 + (request.seed + request.choice_index + i) % 26 for i in count())


Script = Callable[[Request], Iterable[int]]


class FakeDispatcher:
    """
    script     request -> the ids it would generate without end
    cut        request -> sizes of its deltas, for ever; None: one token each
    gate       closed: running requests wait before their next token
    fail_at    raise `error` before this many tokens are out; None: never
    """

    def __init__(self, *cards: ModelCard) -> None:
        self.ledger = Ledger(epoch_s=wall_epoch_s())
        self.all_cards = {one.name: one for one in (cards or (card(),))}
        self.script: Script = alphabet
        self.cut: Callable[[Request], Iterable[int]] | None = None
        self.error: TokenmillError | Exception | None = None
        self.fail_at: int | None = None
        self.is_gate_closed = False
        self.pause_s = 0.0
        self.seen: list[Request] = []
        self.running: set[str] = set()
        self.aborted: list[str] = []
        self.num_tokens_made = 0
        self.cached: set[bytes] = set()
        self.unhealthy: tuple[str, ...] = ()
        self.is_announced = True
        self.is_draining = False
        self._stats: dict[str, WorkerStats] = {name: WorkerStats() for name in self.all_cards}
        self._until_s = time.monotonic()
        for i, name in enumerate(self.all_cards):
            self.ledger.hello(f"w{i}", 0, name, RATE, self._until_s)

    # -- what the door uses --

    def cards(self) -> dict[str, ModelCard]:
        return dict(self.all_cards) if self.is_announced else {}

    def models(self) -> list[str]:
        return sorted(self.all_cards)

    def health(self) -> Health:
        is_ready = self.is_announced and not self.unhealthy
        reasons = self.unhealthy or (() if self.is_announced else ("no worker has announced itself yet",))
        return Health(is_healthy=not self.unhealthy, is_ready=is_ready, reasons=reasons)

    def snapshot(self) -> tuple[MemberView, ...]:
        state = MemberState.READY if self.is_announced else MemberState.STARTING
        return tuple(
            MemberView(f"w{i}", name, 0, state, 0.0, 0.0, 0.0, card=one, stats=self._stats[name])
            for i, (name, one) in enumerate(self.all_cards.items())
        )

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        if self.error is not None and self.fail_at is None:
            raise self.error
        self.seen.append(request)
        self.ledger.begin(
            request.request_id,
            request.model,
            tenant=request.tenant,
            session=request.session_id,
            parent_session=request.parent_session_id,
            num_prompt_tokens=0 if request.choice_index else len(request.prompt_token_ids),
        )
        self.running.add(request.request_id)
        has_ended = False
        try:
            for delta in self._deltas(request):
                while self.is_gate_closed:
                    await asyncio.sleep(0.002)
                await asyncio.sleep(self.pause_s)
                self._step(request, delta)
                has_ended = delta.finish_reason is not None
                yield delta
        finally:
            self.running.discard(request.request_id)
            if not has_ended:
                self.aborted.append(request.request_id)
            self.ledger.finish(request.request_id, is_complete=has_ended)
            self._count(request.model)

    # -- inside --

    def _deltas(self, request: Request) -> Iterator[TokenDelta]:
        sampling = request.sampling
        hits = 0
        for digest in request.block_hashes:
            if digest not in self.cached:
                break
            hits += BLOCK
        hits = min(hits, len(request.prompt_token_ids) - 1)
        self.cached.update(request.block_hashes)
        self._count(request.model, num_prompt=len(request.prompt_token_ids), num_hits=hits)
        sizes = iter(self.cut(request)) if self.cut else iter(lambda: 1, 0)
        generated = iter(self.script(request))
        num_out, is_first = 0, True
        while True:
            new: list[int] = []
            reason, stop_id = None, None
            for token_id in islice(generated, next(sizes)):
                if self.fail_at is not None and num_out >= self.fail_at:
                    assert self.error is not None
                    raise self.error
                new.append(token_id)
                num_out += 1
                ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else request.eos_token_ids)}
                if token_id in ends and num_out >= sampling.min_tokens:
                    reason, stop_id = FinishReason.STOP, token_id
                elif num_out == sampling.max_tokens:
                    reason = FinishReason.LENGTH
                if reason is not None:
                    break
            self.num_tokens_made += len(new)
            yield TokenDelta(
                request_id=request.request_id,
                token_ids=tuple(new),
                logprobs=None if sampling.logprobs is None else tuple(row(i, sampling.logprobs) for i in new),
                prompt_logprobs=tuple(row(i, sampling.prompt_logprobs) for i in request.prompt_token_ids[1:])
                if is_first and sampling.prompt_logprobs is not None
                else None,
                finish_reason=reason,
                stop_token_id=stop_id,
                num_cached_tokens=hits if is_first else None,
                num_prefill_tokens=len(request.prompt_token_ids) - hits if is_first else 0,
                queue_s=0.002 if is_first else None,
                seconds=STEP_S,
            )
            is_first = False
            if reason is not None:
                return

    def _step(self, request: Request, delta: TokenDelta) -> None:
        self._count(request.model, num_output=len(delta.token_ids))
        index = list(self.all_cards).index(request.model)
        self._until_s += 2 * STEP_S
        self.ledger.step(
            StepFrame(
                worker_id=f"w{index}",
                incarnation=0,
                until_s=self._until_s,
                busy_s=STEP_S,
                idle_s=STEP_S,
                deltas=(delta,),
                stats=self._stats[request.model],
            )
        )

    def _count(self, model: str, *, num_prompt: int = 0, num_hits: int = 0, num_output: int = 0) -> None:
        old = self._stats[model]
        num_running = sum(request.model == model for request in self.seen if request.request_id in self.running)
        self._stats[model] = WorkerStats(
            num_running=num_running,
            num_waiting=max(0, num_running - self.all_cards[model].max_num_seqs),
            kv_usage=min(1.0, num_running / 10),
            num_preemptions_total=old.num_preemptions_total,
            prefix_queries_total=old.prefix_queries_total + num_prompt,
            prefix_hits_total=old.prefix_hits_total + num_hits,
            prompt_tokens_total=old.prompt_tokens_total + num_prompt - num_hits,
            generation_tokens_total=old.generation_tokens_total + num_output,
            steps_total=old.steps_total + 1,
        )


def row(token_id: int, num_top: int | None) -> TokenLogprob:
    """The chosen token is the likeliest but for every fifth id, where it is not among the alternatives."""
    if token_id % 5 == 0:
        top = tuple(((token_id + 1 + k) % 256, -0.1 - k) for k in range(num_top or 0))
        return TokenLogprob(token_id, -50.0, top)
    top = tuple(((token_id + k) % 256, -0.1 - k) for k in range(num_top or 0))
    return TokenLogprob(token_id, -0.1, top)
