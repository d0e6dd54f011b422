"""DeepSeek V4 through the engine: golden ids and logits however the scheduler cuts, mixes, caches and preempts.

The engine knows cache groups, never the model's name; the same tests run on any folder of goldens (--goldens DIR).
"""

from __future__ import annotations

import random

import pytest
import torch

from tests.deepseek_v4.conftest import Golden
from tokenmill.core.request import Request, SamplingParams
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_engine

BLOCK = 128
CHUNKS = (*(pytest.param(n, marks=pytest.mark.ci) for n in (1, 3)), 64, 100, 128, 2048)
TOLERANCE = 1e-3


def make_engine(golden: Golden, **settings: object) -> Engine:
    config = {
        "deterministic": True,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 2**26,
        "num_threads": 1,
        **settings,
    }
    return load_engine(golden.path, EngineConfig(**config), name="golden")


def request(name: str, prompt: list[int], max_tokens: int = 32, **sampling: object) -> Request:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **sampling})
    return Request(request_id=name, model="golden", prompt_token_ids=prompt, sampling=params)


class Outcome:
    """What one request gave: ids, log-probabilities, tokens out of the cache."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[object] = []
        self.num_cached: int | None = None


def run(engine: Engine, *requests: Request, preempt_at: frozenset[int] = frozenset()) -> dict[str, Outcome]:
    outcomes = {one.request_id: Outcome() for one in requests}
    for one in requests:
        engine.add(one)
    for step in range(100_000):
        if not engine.has_work():
            break
        if step in preempt_at and engine._scheduler._running:
            engine._scheduler._preempt(engine._scheduler._running[-1])
        for delta in engine.step():
            outcome = outcomes[delta.request_id]
            outcome.ids.extend(delta.token_ids)
            outcome.logprobs.extend(delta.logprobs or ())
            if delta.num_cached_tokens is not None:
                outcome.num_cached = delta.num_cached_tokens
    assert not engine.has_work()
    engine.check_integrity()
    return outcomes


def cached_tokens(length: int) -> int:
    """What the block size implies: at least the last token is computed."""
    return BLOCK * ((length - 1) // BLOCK)


def check_logits(golden: Golden, length: int, outcome: Outcome) -> None:
    name = f"prompt_{length}."
    assert outcome.ids == golden.reference[name + "greedy_ids"].tolist(), name
    rows = golden.reference[name + "greedy_rows"].tolist()
    want = torch.log_softmax(golden.reference[name + "greedy_logits"], dim=-1)
    for row, logprobs in zip(rows, want, strict=True):
        entry = outcome.logprobs[row]
        for token_id, logprob in entry.top:
            assert abs(logprobs[token_id].item() - logprob) < TOLERANCE, f"{name} step {row} token {token_id}"


@pytest.mark.parametrize("chunk", CHUNKS)
def test_golden_in_chunks_cold_and_warm(golden: Golden, chunk: int) -> None:
    """Ids and logits; then again from the prefix cache, with exactly the cached tokens that the block size implies."""
    engine = make_engine(golden, max_num_batched_tokens=chunk)
    lengths = [n for n in golden.lengths if n <= (129 if chunk <= 3 else 300)][-2:]
    for length in lengths:
        for round_name, num_cached in (("cold", None), ("warm", cached_tokens(length))):
            outcome = run(engine, request(f"{length}-{round_name}", golden.ids(length), logprobs=5))
            one = outcome[f"{length}-{round_name}"]
            check_logits(golden, length, one)
            assert num_cached is None or one.num_cached == num_cached


@pytest.mark.parametrize("chunk", [100, pytest.param(3, marks=pytest.mark.slow)])
def test_golden_mixed_batches(golden: Golden, chunk: int) -> None:
    """All prompts at once: prefills and decodes of unequal lengths in every step; each equals its solo run."""
    engine = make_engine(golden, max_num_batched_tokens=chunk)
    for round_name in ("cold", "warm"):
        requests = [request(f"{n}-{round_name}", golden.ids(n), logprobs=5) for n in golden.lengths]
        outcomes = run(engine, *requests)
        for length in golden.lengths:
            check_logits(golden, length, outcomes[f"{length}-{round_name}"])


def test_golden_preempted_at_sampled_steps(golden: Golden) -> None:
    """Preempted in prefill and decode; blocks are found again or computed anew, and the ids do not change."""
    draw = random.Random(0)
    for _ in range(2):
        engine = make_engine(golden, max_num_batched_tokens=100)
        at = frozenset(draw.sample(range(40), 8))
        outcomes = run(engine, *(request(str(n), golden.ids(n), logprobs=5) for n in (5, 129, 300)), preempt_at=at)
        assert engine.stats().num_preemptions_total > 0
        for length in (5, 129, 300):
            check_logits(golden, length, outcomes[str(length)])


@pytest.mark.slow
def test_golden_preempted_at_every_step(golden: Golden) -> None:
    for step in range(1, 40):
        for caching in (True, False):
            engine = make_engine(golden, max_num_batched_tokens=100, enable_prefix_caching=caching)
            outcomes = run(
                engine, *(request(str(n), golden.ids(n), logprobs=5) for n in (129, 300)), preempt_at=frozenset([step])
            )
            for length in (129, 300):
                check_logits(golden, length, outcomes[str(length)])


@pytest.mark.parametrize("policy", ["all", "periodic", "recompute"])
def test_golden_retention_policies_are_exact(golden: Golden, policy: str) -> None:
    """What is kept of window groups changes how much is computed, never what comes out."""
    engine = make_engine(golden, window_retention=policy, window_retention_interval=2)
    length = golden.lengths[-1]
    cold = run(engine, request("cold", golden.ids(length), logprobs=5))["cold"]
    warm = run(engine, request("warm", golden.ids(length), logprobs=5))["warm"]
    check_logits(golden, length, cold)
    check_logits(golden, length, warm)
    assert warm.logprobs == cold.logprobs, "not the same bits"
    assert cold.num_cached == 0 and warm.num_cached is not None
    full = cached_tokens(length)
    if policy == "all":
        assert warm.num_cached == full
    elif policy == "periodic":
        assert warm.num_cached == full // (2 * BLOCK) * (2 * BLOCK)
    else:
        rebuild = max(g.rebuild_tokens or 0 for g in engine._scheduler.kv.groups)
        assert warm.num_cached == max(0, full - -(-rebuild // BLOCK) * BLOCK)


def check_warm_equals_cold(golden: Golden, lengths: list[int]) -> None:
    """Token-exact, log-probabilities bit for bit, for a prompt that shares `n` tokens with one that is cached."""
    base = golden.ids(golden.lengths[-1])[:400]
    cold, warm = make_engine(golden, enable_prefix_caching=False), make_engine(golden)
    run(warm, request("base", base, 1))
    for n in lengths:
        one = request(f"n{n}", base[:n], 2, logprobs=3)
        want, got = run(cold, one)[one.request_id], run(warm, one)[one.request_id]
        assert got.ids == want.ids and got.logprobs == want.logprobs, f"prefix of {n}"
        assert got.num_cached == cached_tokens(n), f"prefix of {n}"


def test_golden_warm_equals_cold_around_boundaries(golden: Golden) -> None:
    """S15, S20: every length next to a block or window boundary."""
    check_warm_equals_cold(golden, [1, 2, 127, 128, 129, 130, 131, 132, 133, 255, 256, 257, 260, 385, 400])


@pytest.mark.ci
@pytest.mark.parametrize("first", range(1, 401, 50))
def test_warm_equals_cold_for_every_prefix_length(golden: Golden, first: int) -> None:
    check_warm_equals_cold(golden, list(range(first, first + 50)))


def test_golden_a_b_a(golden: Golden) -> None:
    """S16: B comes between two A; pools so small that B takes blocks of A."""
    engine = make_engine(golden, max_num_seqs=1, max_num_batched_tokens=512, kv_cache_memory_bytes=2**22)
    a, b = request("a", golden.ids(300), logprobs=5), request("b", golden.ids(golden.lengths[-1]), logprobs=5)
    for one, length in ((a, 300), (b, golden.lengths[-1]), (a, 300)):
        check_logits(golden, length, run(engine, one)[one.request_id])


def test_window_blocks_are_freed_as_the_sequence_moves_on(golden: Golden) -> None:
    """A running sequence holds its entries, and of windows and states only what the next token needs."""
    engine = make_engine(golden, enable_prefix_caching=False, max_num_batched_tokens=256)
    engine.add(request("a", golden.ids(golden.lengths[-1]), 4))
    while engine._scheduler.get("a") is not None and engine._scheduler.get("a").num_output_tokens < 2:
        engine.step()
    sequence = engine._scheduler.get("a")
    assert sequence is not None
    kv = engine._scheduler.kv
    for group in kv.groups:
        held = kv.pools[group.name].num_active
        if group.window_tokens is None:
            assert held == -(-(len(sequence.token_ids)) // BLOCK) or held == -(-sequence.num_computed_tokens // BLOCK)
        else:
            assert held <= -(-group.window_tokens // BLOCK) + 1, group.name
