"""Greedy and seeded text with speculation equals text without it, token by token and log-probability by
log-probability, on the batch-invariant paths.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.speculative import oracle
from tests.speculative.conftest import PATHS, VOCAB, engine_of, prompt_of, request, run
from tokenmill.engine.speculative.conformance import check_proposer

NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "adaptive": False}
ORACLE = {"method": "oracle", "num_speculative_tokens": 6, "adaptive": False}


@pytest.fixture(scope="module", params=PATHS)
def engines(request, checkpoint):
    """make(speculative, **settings) on one path, and its plain engine."""

    def make(speculative=None, **settings):
        return engine_of(checkpoint, speculative, request.param, **settings)

    make.plain = make(enable_prefix_caching=False)
    return make


def truths(engines, *requests):
    """What the requests say without speculation; the oracle learns it."""
    outputs = run(engines.plain, *requests)
    for one in requests:
        oracle.TRUTH[tuple(one.prompt_token_ids)] = outputs[one.request_id].ids
    return outputs


def check(engines, engine, *requests, **how):
    want, got = truths(engines, *requests), run(engine, *requests, **how)
    for one in requests:
        assert got[one.request_id].said == want[one.request_id].said, one.request_id
    return got


@pytest.mark.parametrize("method", [NGRAM, {"method": "auto"}, {"method": "auto", "draft_sample_method": "greedy"}])
def test_conformance(engines, method):
    """S25: repeated words, periods and palindromes among the prompts; cold and warm, greedy and seeded."""
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 24}
    check_proposer(engines(**limits), engines(method, **limits), VOCAB)


@pytest.mark.parametrize("num_right", [[0], [1], [3], [99], [0, 2, 99, 1]])
def test_any_number_of_right_drafts(engines, num_right, monkeypatch):
    """S27: a proposer whose first draft is always wrong is never believed; one that is always right always is."""
    monkeypatch.setattr(oracle, "NUM_RIGHT", num_right)
    engine = engines(ORACLE, max_num_batched_tokens=40)
    requests = [request(f"r{i}", prompt_of(i, 3 + 9 * i), 8 + 5 * i) for i in range(5)]
    got = check(engines, engine, *requests)
    num_drafts, num_rejected = (sum(getattr(o, n) for o in got.values()) for n in ("num_drafts", "num_rejected"))
    assert num_drafts > 0
    if num_right == [0]:
        assert num_rejected == num_drafts
    if num_right == [99]:
        assert num_rejected == 0
        assert engine._scheduler.drafts.acceptance_length > 4


@pytest.mark.parametrize("budget", [1, 5, 16, 64])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9}, {"prompt_logprobs": 1}])
def test_chunk_boundaries(engines, budget, sampling, monkeypatch):
    monkeypatch.setattr(oracle, "NUM_RIGHT", [2, 0, 5])
    requests = [request(f"r{i}", prompt_of(i, 33 + i), seed=5, **sampling) for i in range(2)]
    check(engines, engines(ORACLE, max_num_batched_tokens=budget), *requests)


def test_prefix_hits_of_every_length(engines, monkeypatch):
    monkeypatch.setattr(oracle, "NUM_RIGHT", [3, 1])
    engine, base = engines(ORACLE), prompt_of(3, 40)
    run(engine, request("base", base, 1))
    for n in range(14, 40, 3):
        one = request(f"n{n}", base[:n] + prompt_of(n, 1), 9)
        got = check(engines, engine, one)
        assert got[one.request_id].num_cached == n // 16 * 16


def test_preempted_at_every_step(engines, monkeypatch):
    monkeypatch.setattr(oracle, "NUM_RIGHT", [2, 4])
    requests = [request(f"r{i}", prompt_of(i, 21 + i), 14, temperature=0.7, seed=i) for i in range(3)]
    for first in range(4):
        engine = engines(ORACLE, max_num_batched_tokens=12)
        check(engines, engine, *requests, preempt_at=frozenset(range(first, 60, 4)))
        assert engine.stats().num_preemptions_total > 0


def test_memory_for_drafts_is_taken_from_nobody(engines, monkeypatch):
    """Little memory: sequences are preempted as without drafts, and the text is the same."""
    monkeypatch.setattr(oracle, "NUM_RIGHT", [99])
    requests = [request(f"r{i}", prompt_of(i, 20 + i), 16, seed=i, temperature=0.8) for i in range(6)]
    engine = engines(ORACLE, kv_cache_memory_bytes=45_000, max_num_seqs=6)
    check(engines, engine, *requests)


@pytest.mark.parametrize(
    "sampling",
    [
        {"frequency_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"presence_penalty": 1.5, "repetition_penalty": 1.3},
        {"logit_bias": {7: 5.0, 9: -100.0}},
        {"min_tokens": 9, "stop_token_ids": tuple(range(0, VOCAB, 3))},
        {"stop_token_ids": tuple(range(0, VOCAB, 5))},
        {"temperature": 1.3, "top_k": 12, "min_p": 0.01},
        {"temperature": 1.0, "top_p": 0.7, "frequency_penalty": 0.5},
    ],
)
def test_sampling_parameters(engines, sampling, monkeypatch):
    """S28, S29: penalties count drafts before them; what is banned appears in no slot of a step."""
    monkeypatch.setattr(oracle, "NUM_RIGHT", [99, 1, 3])
    prompts = [prompt_of(5, 6) * 4, [11] * 20]
    for method in (ORACLE, NGRAM):
        got = check(
            engines, engines(method), *(request(f"r{i}", p, 30, seed=i, **sampling) for i, p in enumerate(prompts))
        )
        assert all(9 not in out.ids for out in got.values()) or "logit_bias" not in sampling


def test_an_end_token_among_the_drafts_ends_the_text(engines, monkeypatch):
    """Drafted, accepted, and nothing behind it comes out; nor is anything proposed behind it."""
    monkeypatch.setattr(oracle, "NUM_RIGHT", [99])
    plain = run(engines.plain, request("a", prompt_of(1, 9), 20))["a"].ids
    for cut in range(1, 12):
        one = request("a", prompt_of(1, 9), 20, eos_token_ids=(plain[cut],))
        got = check(engines, engines(ORACLE), one)["a"]
        assert got.ids == plain[: plain.index(plain[cut]) + 1]


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_mix_of_requests(engines, data):
    """Ragged batches: any prompts, lengths, budgets, numbers of right drafts, and preemptions."""
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    oracle.NUM_RIGHT[:] = [draw.randrange(8) for _ in range(5)]
    requests = [
        request(
            f"r{i}", prompt_of(draw.randrange(99), draw.randint(1, 50)), draw.randint(1, 20),
            seed=i, temperature=draw.choice((0.0, 1.0)),
        )
        for i in range(draw.randint(1, 6))
    ]  # fmt: skip
    limits = {"max_num_batched_tokens": draw.randint(1, 40), "max_num_seqs": draw.randint(1, 6)}
    preempt_at = frozenset(draw.sample(range(60), draw.randrange(5)))
    check(engines, engines(ORACLE, **limits), *requests, preempt_at=preempt_at)
