"""The lines of the bill, sums over them, and the figures made of them: dollars per million tokens, rates of a window.

Not responsible for: collecting (cost/ledger) or printing (api/metrics, cost/report).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from tokenmill.cost.tally import Amount


class Line(StrEnum):
    """What money was spent on. Disjoint; together they are the whole bill. All but storage are worker time."""

    PREFILL = "prefill"  # rows of tokens known before the step: prompts, and what preemption threw away
    DECODE = "decode"  # rows that made new tokens, accepted drafts included
    DRAFTING = "drafting"  # proposing drafts and keeping draft caches
    REJECTED = "rejected_drafts"  # rows of drafts that did not stay
    TRANSFER = "transfer"  # moving KV blocks of a request between devices
    OVERRUN = "overrun"  # in steps, for requests that the frontend had finished
    IDLE = "idle"  # in the wait for work, measured
    STARTUP = "startup"  # from process start to ready
    UNATTRIBUTED = "unattributed"  # busy, for no request in particular
    LOST = "lost"  # nothing was reported any more before the process ended
    STORAGE = "storage"  # blocks kept outside the devices that are paid for by the hour anyway


#: Steps of requests that somebody waits for.
CHARGED = (Line.PREFILL, Line.DECODE, Line.DRAFTING, Line.REJECTED, Line.TRANSFER)
#: What belongs to a request, a session and a tenant; the rest is the fleet's.
OWNED = (*CHARGED, Line.OVERRUN, Line.STORAGE)
_BUSY = (*CHARGED, Line.OVERRUN, Line.UNATTRIBUTED)


@dataclass(slots=True)
class TokenCounts:
    """
    num_prompt_tokens    of requests with a first token, cached ones included; of n choices the prompt counts once
    num_cached_tokens    of them, served by the prefix cache
    num_computed_tokens  rows of known tokens that workers computed (recomputation counts again)
    num_output_tokens    shown to clients
    num_good_tokens      of them, those of requests that met every objective
    num_overrun_tokens   computed behind a request's end
    num_draft_tokens     drafts that were verified; num_rejected_tokens: of them, those that did not stay
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_good_tokens: int = 0
    num_overrun_tokens: int = 0
    num_requests: int = 0
    num_good_requests: int = 0
    num_draft_tokens: int = 0
    num_rejected_tokens: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(*(getattr(self, name) + getattr(other, name) for name in COUNT_FIELDS))


COUNT_FIELDS = tuple(field.name for field in fields(TokenCounts))


@dataclass(frozen=True, slots=True)
class Totals:
    """Some part of the bill. `counts` is a copy; do not change it."""

    lines: Mapping[Line, Amount]
    counts: TokenCounts

    def of(self, lines: Iterable[Line]) -> Amount:
        return sum((self.lines[line] for line in lines), Amount())

    @property
    def charged(self) -> Amount:
        return self.of(CHARGED)

    @property
    def whole(self) -> Amount:
        """All lines together: what must be paid."""
        return self.of(Line)

    def __add__(self, other: Totals) -> Totals:
        return Totals({line: self.lines[line] + other.lines[line] for line in Line}, self.counts + other.counts)

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


NOTHING = Totals({line: Amount() for line in Line}, TokenCounts())


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
    busy_s = after.of(_BUSY).seconds - before.of(_BUSY).seconds
    return Window(
        seconds=seconds,
        prompt_tok_per_s=num_computed / seconds,
        generation_tok_per_s=num_output / seconds,
        usd=usd,
        usd_per_mtok_total=per_mtok(usd, num_prompt + num_output),
        usd_per_mtok_output=per_mtok(usd, num_output),
        busy_share=busy_s / reported_s if reported_s > 0 else 0.0,
    )
