"""Splitting one step's seconds over the sequences in it, by the work each caused.

The rule. A step computes rows; every row (prompt token, decoded token or draft, accepted or not) passes the same
weights, so it counts the same. Attention adds to a row in proportion to the context it reads. Hence
    weight = n + context_weight * (n * c + n * (n + 1) / 2)
for n rows behind a context of c tokens, context_weight being attention work per context token in units of a row's
other work. What a step costs at all (reading the weights, launching, proposing drafts) is shared in the same
proportion: it is there because of all of them. All shares are whole ticks (core/ticks), so they add up exactly.
Not responsible for: time outside steps, and for whom it is charged to (cost/ledger).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.core.ticks import deal, on_grid, to_seconds, to_ticks


@dataclass(frozen=True, slots=True)
class Rows:
    """What one sequence computed in a step: rows in order behind `context_len` tokens.

    num_prefill   the first of them: of tokens known before the step
    num_rejected  the last of them: of drafts that did not stay
    """

    num_tokens: int
    context_len: int = 0
    num_prefill: int = 0
    num_rejected: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """`seconds` of a step, and of them those for prefill, drafting and rejected drafts; the rest is decoding."""

    seconds: float
    prefill_s: float = 0.0
    draft_s: float = 0.0
    rejected_s: float = 0.0


def row_weight(num_tokens: int, context_len: int = 0, *, context_weight: float = 0.0) -> float:
    """Weight of one sequence's part of a step: `num_tokens` rows behind `context_len` tokens (rule above)."""
    pairs = num_tokens * context_len + num_tokens * (num_tokens + 1) / 2
    return num_tokens + context_weight * pairs


def bill_step(
    seconds: float, rows: Sequence[Rows], *, draft_s: float = 0.0, context_weight: float = 0.0
) -> list[Share]:
    """The share of each sequence; shares sum to `seconds`, rounded to a tick, exactly and in any order.

    draft_s  of the step, spent on proposing drafts and keeping their caches
    """
    assert 0 <= draft_s <= seconds < math.inf, f"step of {seconds} s, {draft_s} s of drafting"
    drafting = min(to_ticks(draft_s), to_ticks(seconds))
    weights = [row_weight(r.num_tokens, r.context_len, context_weight=context_weight) for r in rows]
    model_ticks = deal(to_ticks(seconds) - drafting, weights)
    draft_ticks = deal(drafting, weights)
    return [
        _share(ticks, drafts, one, context_weight)
        for ticks, drafts, one in zip(model_ticks, draft_ticks, rows, strict=True)
    ]


def _share(ticks: int, draft_ticks: int, rows: Rows, context_weight: float) -> Share:
    num_kept = rows.num_tokens - rows.num_rejected
    assert 0 <= rows.num_prefill <= num_kept, f"{rows}"
    if rows.num_prefill == rows.num_tokens:
        prefill, rejected = ticks, 0
    elif rows.num_prefill == rows.num_rejected == 0:
        prefill = rejected = 0
    else:
        upto = [row_weight(n, rows.context_len, context_weight=context_weight) for n in (rows.num_prefill, num_kept)]
        whole = row_weight(rows.num_tokens, rows.context_len, context_weight=context_weight)
        prefill, _, rejected = deal(ticks, [upto[0], upto[1] - upto[0], whole - upto[1]])
    return Share(
        seconds=to_seconds(ticks + draft_ticks),
        prefill_s=to_seconds(prefill),
        draft_s=to_seconds(draft_ticks),
        rejected_s=to_seconds(rejected),
    )


class StepSpans:
    """Which part of the clock belongs to which step, also when step n + 1 is launched before n has ended.

    A device does one step at a time: a step owns the time from the end of the step before it (or from its own start,
    when nothing ran) to its own end. So spans never overlap, and planning hidden behind a running step costs nothing.
    """

    def __init__(self) -> None:
        self._until_s = -math.inf

    @property
    def until_s(self) -> float:
        """End of the last span."""
        return self._until_s

    def take(self, start_s: float, end_s: float) -> float:
        """Seconds (whole ticks) that the step from `start_s` to `end_s` owns; steps come in the order of their ends."""
        assert end_s >= start_s, f"a step from {start_s} to {end_s}"
        begin_s = max(on_grid(start_s), self._until_s)
        self._until_s = max(on_grid(end_s), self._until_s)
        return max(0.0, self._until_s - begin_s)
