"""A step's seconds are split by work caused, and no part of a second is lost or made up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.ticks import deal, on_grid, to_ticks
from tokenmill.cost.shares import Rows, StepSpans, bill_step, row_weight

SECONDS = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 5e-324, 1e-308, 1e-9, 1 / 3, 3600.0]))
WEIGHTS = st.lists(st.one_of(st.integers(0, 4096), st.floats(0, 1e6)), max_size=70)


@st.composite
def rows_of_a_step(draw: st.DrawFn) -> Rows:
    prefill, decode, drafts = draw(st.integers(0, 600)), draw(st.integers(0, 1)), draw(st.integers(0, 8))
    return Rows(prefill + decode + drafts, draw(st.integers(0, 5000)), prefill, draw(st.integers(0, drafts)))


STEPS = st.lists(rows_of_a_step(), max_size=40)


def seconds_of(seconds: float, counts: list[int]) -> list[float]:
    return [share.seconds for share in bill_step(seconds, [Rows(n) for n in counts])]


@settings(deadline=None)
@given(total=st.integers(0, 2**53), weights=WEIGHTS)
def test_dealt_parts_add_up(total: int, weights: list[float]) -> None:
    parts = deal(total, weights)
    assert sum(parts) == (total if weights else 0)
    assert all(part >= 0 for part in parts)


@settings(deadline=None)
@given(seconds=SECONDS, rows=STEPS, seed=st.integers(), drafting=st.floats(0, 1))
def test_sum_is_exact_in_any_order(seconds: float, rows: list[Rows], seed: int, drafting: float) -> None:
    shares = bill_step(seconds, rows, draft_s=seconds * drafting, context_weight=1e-3)
    assert len(shares) == len(rows)
    random.Random(seed).shuffle(shares)
    assert sum(share.seconds for share in shares) == (on_grid(seconds) if rows else 0.0)
    for share in shares:
        parts = (share.prefill_s, share.draft_s, share.rejected_s)
        assert all(part >= 0 for part in parts) and sum(parts) <= share.seconds


@settings(deadline=None)
@given(seconds=st.floats(1e-6, 1e3), counts=st.lists(st.integers(0, 4096), min_size=1).filter(lambda w: sum(w) > 0))
def test_shares_are_proportional(seconds: float, counts: list[int]) -> None:
    for share, count in zip(seconds_of(seconds, counts), counts, strict=True):
        weight = count / sum(counts)
        assert share == pytest.approx(seconds * weight, rel=1e-9, abs=2**-29)


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 512), min_size=1, max_size=20), extra=st.integers(1, 512))
def test_more_tokens_never_cost_less(counts: list[int], extra: int) -> None:
    before = seconds_of(1.0, counts)[0]
    after = seconds_of(1.0, [counts[0] + extra, *counts[1:]])[0]
    assert after >= before


def test_no_work_at_all_is_shared_equally() -> None:
    assert seconds_of(1.0, [0, 0, 0, 0]) == [0.25] * 4
    assert seconds_of(1.0, []) == []


def test_alone_in_a_step() -> None:
    assert seconds_of(0.125, [7]) == [0.125]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_seconds(seconds: float) -> None:
    with pytest.raises(AssertionError):
        bill_step(seconds, [Rows(1)])


@pytest.mark.parametrize("rows", [Rows(3, 0, 3, 1), Rows(2, 0, 3), Rows(2, 0, -1)])
def test_impossible_rows(rows: Rows) -> None:
    with pytest.raises(AssertionError):
        bill_step(1.0, [rows])


# -- what a share is for --


def test_a_share_by_kind_of_work() -> None:
    """Of 8 rows 4 are prompt, 1 decodes, 3 are drafts of which 2 were thrown away; a quarter of the step drafted."""
    (share,) = bill_step(1.0, [Rows(8, 0, 4, 2)], draft_s=0.25)
    assert (share.seconds, share.prefill_s, share.draft_s, share.rejected_s) == (1.0, 0.375, 0.25, 0.1875)


def test_rejected_drafts_of_one_are_not_the_others_cost() -> None:
    drafting, plain = bill_step(1.0, [Rows(4, 100, 0, 3), Rows(4, 100, 3, 0)])
    assert drafting.seconds == plain.seconds == 0.5
    assert (drafting.rejected_s, plain.rejected_s) == (0.375, 0.0)


# -- the rule --


def test_a_row_is_a_row_whether_prefill_or_decode() -> None:
    assert row_weight(512) == 512 * row_weight(1)
    assert row_weight(1, 10_000) == 1


@settings(deadline=None)
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


# -- overlapped steps --


def test_steps_after_one_another_own_their_time() -> None:
    spans = StepSpans()
    assert [spans.take(1.0, 2.0), spans.take(3.0, 3.5)] == [1.0, 0.5]


def test_a_step_launched_before_the_last_one_ended_owns_only_what_is_left() -> None:
    """Step 2 is planned and launched at 1.5 while step 1 runs until 2: planning is hidden and costs nothing."""
    spans = StepSpans()
    assert [spans.take(1.0, 2.0), spans.take(1.5, 2.75), spans.take(2.5, 3.0)] == [1.0, 0.75, 0.25]
    assert spans.until_s == 3.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=30))
def test_spans_tile_busy_time_exactly(steps: list[tuple[float, float, bool]]) -> None:
    spans, now_s, total, covered = StepSpans(), 0.0, 0, 0
    until = 0
    for gap_s, length_s, is_overlapped in steps:
        start_s = max(0.0, now_s - gap_s) if is_overlapped else now_s + gap_s
        now_s = max(now_s, start_s) + length_s
        total += to_ticks(spans.take(start_s, now_s))
        covered += to_ticks(now_s) - max(until, to_ticks(start_s))
        until = to_ticks(now_s)
    assert total == covered
