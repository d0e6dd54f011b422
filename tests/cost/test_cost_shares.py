"""A step's seconds are split by work caused, and no part of a second is lost or made up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.cost.shares import row_weight, split_step

SECONDS = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 5e-324, 1e-308, 1e-9, 1 / 3, 3600.0]))
WEIGHTS = st.lists(st.one_of(st.integers(0, 4096), st.floats(0, 1e6)), max_size=70)


@given(seconds=SECONDS, weights=WEIGHTS, seed=st.integers())
def test_sum_is_exact_in_any_order(seconds: float, weights: list[float], seed: int) -> None:
    shares = split_step(seconds, weights)
    assert len(shares) == len(weights)
    assert all(share >= 0 for share in shares)
    random.Random(seed).shuffle(shares)
    assert sum(shares) == (seconds if weights else 0.0)


@given(seconds=st.floats(1e-6, 1e3), weights=WEIGHTS.filter(lambda w: sum(w) > 0))
def test_shares_are_proportional(seconds: float, weights: list[float]) -> None:
    for share, weight in zip(split_step(seconds, weights), weights, strict=True):
        assert share == pytest.approx(seconds * (weight / sum(weights)), rel=1e-9, abs=seconds * 1e-12)


@given(weights=st.lists(st.integers(1, 512), min_size=1, max_size=20), extra=st.integers(1, 512))
def test_more_tokens_never_cost_less(weights: list[int], extra: int) -> None:
    before = split_step(1.0, weights)[0]
    after = split_step(1.0, [weights[0] + extra, *weights[1:]])[0]
    assert after >= before


def test_no_work_at_all_is_shared_equally() -> None:
    assert split_step(1.0, [0, 0, 0, 0]) == [0.25] * 4
    assert split_step(1.0, []) == []


def test_alone_in_a_step() -> None:
    assert split_step(0.1, [7]) == [0.1]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_seconds(seconds: float) -> None:
    with pytest.raises(AssertionError):
        split_step(seconds, [1])


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_impossible_weights(weight: float) -> None:
    with pytest.raises(AssertionError):
        split_step(1.0, [1.0, weight])


# -- the rule --


def test_a_row_is_a_row_whether_prefill_or_decode() -> None:
    assert row_weight(512) == 512 * row_weight(1)
    assert row_weight(1, 10_000) == 1


@given(num_tokens=st.integers(1, 300), context_len=st.integers(0, 300), cut=st.integers(0, 300))
def test_chunks_weigh_as_much_as_the_whole(num_tokens: int, context_len: int, cut: int) -> None:
    """Splitting a prompt over steps must not change what it is charged for."""
    cut = min(cut, num_tokens)
    parts = row_weight(cut, context_len, context_weight=1e-3) + row_weight(
        num_tokens - cut, context_len + cut, context_weight=1e-3
    )
    assert parts == pytest.approx(row_weight(num_tokens, context_len, context_weight=1e-3))


def test_long_contexts_weigh_more() -> None:
    short, long = (row_weight(1, c, context_weight=2.5e-4) for c in (10, 4000))
    assert long / short == pytest.approx(2.0, rel=0.01)
