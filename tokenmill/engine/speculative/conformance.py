"""What every proposer has to hold, checked through whole engines: the text is the text without it, however requests
are cut, mixed, cached, preempted or aborted, and nothing is kept of requests that are gone.

    check_proposer(plain, speculative, vocab_size)

takes two engines over the same weights on a batch-invariant path, one without and one with the proposer, both with
prefix caching and room for 4 sequences.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenmill.core.request import FinishReason, Request, SamplingParams, TokenLogprob
from tokenmill.engine.engine import Engine

_MOST_STEPS = 20_000


@dataclass(slots=True)
class Outcome:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_drafts: int = 0
    num_rejected: int = 0


def check_proposer(plain: Engine, speculative: Engine, vocab_size: int, *, seed: int = 0) -> None:
    """AssertionError, naming the request, at the first difference."""
    draw = random.Random(seed)
    for name, prompts in _batches(draw, vocab_size):
        want = run_requests(plain, [_request(f"{name}{i}", ids, i) for i, ids in enumerate(prompts)])
        for warmth in ("cold", "warm"):
            got = run_requests(speculative, [_request(f"{name}{i}", ids, i) for i, ids in enumerate(prompts)])
            for request_id, outcome in want.items():
                said = (outcome.token_ids, outcome.logprobs, outcome.finish_reason)
                same = got[request_id]
                assert (same.token_ids, same.logprobs, same.finish_reason) == said, f"{request_id} {warmth}"
                assert 0 <= same.num_rejected <= same.num_drafts, f"{request_id}: {same.num_rejected} rejected"
    _check_aborts(speculative, draw, vocab_size)


def _batches(draw: random.Random, vocab_size: int) -> list[tuple[str, list[list[int]]]]:
    """Random prompts of unequal lengths; and texts that repeat a token, a period, and themselves backwards."""
    word = draw.choices(range(vocab_size), k=7)
    return [
        ("random", [draw.choices(range(vocab_size), k=n) for n in (1, 5, 17, 40, 64, 65)]),
        ("repeats", [[word[0]] * 48, word * 7, (word + word[::-1]) * 3]),
    ]


def _request(name: str, prompt: Sequence[int], i: int) -> Request:
    sampling = SamplingParams(temperature=(0.0, 0.8)[i % 2], max_tokens=5 + 6 * i, logprobs=1)
    return Request(
        request_id=name, model="any", prompt_token_ids=list(prompt), sampling=sampling, seed=i, eos_token_ids=(3,)
    )


def run_requests(engine: Engine, requests: Sequence[Request]) -> dict[str, Outcome]:
    """To the end, with accounting checked after each step."""
    outcomes = {request.request_id: Outcome() for request in requests}
    for request in requests:
        engine.add(request)
    for _ in range(_MOST_STEPS):
        if not engine.has_work():
            break
        for delta in engine.step():
            outcome = outcomes[delta.request_id]
            outcome.token_ids.extend(delta.token_ids)
            outcome.logprobs.extend(delta.logprobs or ())
            outcome.finish_reason = delta.finish_reason or outcome.finish_reason
            outcome.num_drafts += delta.num_draft_tokens
            outcome.num_rejected += delta.num_rejected_tokens
        engine.check_integrity()
    assert not engine.has_work(), "no progress"
    return outcomes


def _check_aborts(engine: Engine, draw: random.Random, vocab_size: int) -> None:
    """Requests that leave at any moment give everything back."""
    for i in range(6):
        engine.add(_request(f"leaver{i}", draw.choices(range(vocab_size), k=9), 5))
    for i in range(6):
        for _ in range(i):
            engine.step()
        engine.abort(f"leaver{i}")
        engine.check_integrity()
    while engine.has_work():
        engine.step()
    assert engine.stats().kv_usage == 0, "blocks are held by nobody"
