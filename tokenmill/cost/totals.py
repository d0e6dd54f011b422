"""Frozen sums of the ledger and the figures made from them: dollars per million tokens, rates over a window.

Not responsible for: collecting (cost/ledger) or printing (api/metrics, the log line).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from tokenmill.cost.tally import Amount


class TimeKind(StrEnum):
    """What a second of a worker process was spent on. Disjoint; together they are the whole bill."""

    CHARGED = "charged"  # in steps, for requests somebody waits for
    OVERRUN = "overrun"  # in steps, for requests that the frontend had finished
    IDLE = "idle"  # in the wait for work, measured
    STARTUP = "startup"  # from process start to ready
    UNATTRIBUTED = "unattributed"  # busy, for no request in particular
    LOST = "lost"  # nothing was reported any more before the process ended


@dataclass(slots=True)
class TokenCounts:
    """
    num_prompt_tokens    of requests with a first token, cached ones included
    num_cached_tokens    of them, served by the prefix cache
    num_computed_tokens  prompt tokens that workers computed (recomputation counts again)
    num_output_tokens    shown to clients
    num_good_tokens      of them, those of requests that met every objective
    num_overrun_tokens   computed behind a request's end
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_good_tokens: int = 0
    num_overrun_tokens: int = 0
    num_requests: int = 0
    num_good_requests: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Totals:
    """Everything reported so far, of one model or of the fleet. `counts` is a copy; do not change it."""

    time: Mapping[TimeKind, Amount]
    counts: TokenCounts

    @property
    def whole(self) -> Amount:
        """All kinds together: what must be paid."""
        return sum(self.time.values(), Amount())

    def __add__(self, other: Totals) -> Totals:
        return Totals({kind: self.time[kind] + other.time[kind] for kind in TimeKind}, self.counts + other.counts)

    # The whole bill (idle, start-up and losses included) over tokens; None while there are none.

    @property
    def usd_per_mtok_total(self) -> float | None:
        """Per prompt and output token."""
        return per_mtok(self.whole.usd, self.counts.num_prompt_tokens + self.counts.num_output_tokens)

    @property
    def usd_per_mtok_output(self) -> float | None:
        return per_mtok(self.whole.usd, self.counts.num_output_tokens)

    @property
    def usd_per_mtok_good(self) -> float | None:
        """Per output token of requests that met every objective; without objectives, of all that completed."""
        return per_mtok(self.whole.usd, self.counts.num_good_tokens)


NOTHING = Totals({kind: Amount() for kind in TimeKind}, TokenCounts())


def per_mtok(usd: float, num_tokens: int) -> float | None:
    return usd * 1e6 / num_tokens if num_tokens > 0 else None


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two snapshots.

    prompt_tok_per_s      prompt tokens computed (the prefix cache's not included)
    generation_tok_per_s  output tokens
    usd_per_mtok_total, _output  the window's bill over its tokens; None when it had none
    busy_share            of the reported time, that spent in steps
    """

    seconds: float
    prompt_tok_per_s: float
    generation_tok_per_s: float
    usd: float
    usd_per_mtok_total: float | None
    usd_per_mtok_output: float | None
    busy_share: float


def window(before: Totals, after: Totals, seconds: float) -> Window:
    """Rates over the last `seconds`, which lie between the two snapshots."""
    assert seconds > 0, f"window of {seconds} s"
    usd = after.whole.usd - before.whole.usd
    num_prompt = after.counts.num_prompt_tokens - before.counts.num_prompt_tokens
    num_output = after.counts.num_output_tokens - before.counts.num_output_tokens
    num_computed = after.counts.num_computed_tokens - before.counts.num_computed_tokens
    reported_s = after.whole.seconds - before.whole.seconds
    return Window(
        seconds=seconds,
        prompt_tok_per_s=num_computed / seconds,
        generation_tok_per_s=num_output / seconds,
        usd=usd,
        usd_per_mtok_total=per_mtok(usd, num_prompt + num_output),
        usd_per_mtok_output=per_mtok(usd, num_output),
        busy_share=(_busy_s(after) - _busy_s(before)) / reported_s if reported_s > 0 else 0.0,
    )


def _busy_s(totals: Totals) -> float:
    return sum(totals.time[k].seconds for k in (TimeKind.CHARGED, TimeKind.OVERRUN, TimeKind.UNATTRIBUTED))
