"""Synthetic prompts and arrivals: right length, unique, reproducible."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.workloads.arrivals import arrival_times
from tokenmill.workloads.prompts import text_prompts, token_prompts, words_for_tokens


@given(st.integers(1, 8), st.integers(1, 64), st.integers(0, 64), st.integers(0, 2**32))
def test_token_prompts_have_the_length_and_share_only_what_is_asked(num: int, isl: int, shared: int, seed: int) -> None:
    shared = min(shared, isl)
    prompts = token_prompts(num, isl, vocab_size=49_152, seed=seed, num_shared=shared)
    assert [len(prompt) for prompt in prompts] == [isl] * num
    assert all(3 <= token < 49_152 for prompt in prompts for token in prompt)
    assert all(prompt[:shared] == prompts[0][:shared] for prompt in prompts)
    assert prompts == token_prompts(num, isl, vocab_size=49_152, seed=seed, num_shared=shared)


def test_prompts_are_unique_from_the_first_block_on() -> None:
    prompts = token_prompts(200, 64, vocab_size=1000, seed=1)
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 200
    assert token_prompts(1, 64, vocab_size=1000, seed=1) != token_prompts(1, 64, vocab_size=1000, seed=2)
    texts = text_prompts(200, 32, seed=1)
    assert len({text[:40] for text in texts}) == 200
    assert all(len(text.split()) == 32 for text in texts)


@given(st.integers(1, 4000), st.integers(0, 60), st.sampled_from([0.9, 1.0, 1.3, 2.0]))
def test_words_for_tokens_finds_the_line(isl: int, overhead: int, slope: float) -> None:
    def count(words: int) -> int:
        return overhead + round(slope * words)

    words = words_for_tokens(isl, [(20, count(20)), (200, count(200))])
    if words > 1:
        assert abs(count(words) - isl) <= max(2, isl * 0.02)


def test_poisson_arrivals_have_the_rate_and_the_spread() -> None:
    times = arrival_times(20_000, 50.0, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert times[0] == 0.0 and times == sorted(times)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05)  # an exponential's deviation is its mean


def test_even_and_bursty_arrivals() -> None:
    assert arrival_times(4, 2.0, burstiness=math.inf) == [0.0, 0.5, 1.0, 1.5]
    assert arrival_times(3, math.inf) == [0.0, 0.0, 0.0]
    assert arrival_times(0, 1.0) == []
    bursty = arrival_times(5000, 10.0, burstiness=0.25, seed=1)
    assert bursty[-1] == pytest.approx(500, rel=0.15)
