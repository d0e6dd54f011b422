"""What each request cost: open ones, and the last finished ones.

Every change of a request goes to its cell too (cost/cells), where sums come from. Memory is bounded: finished
requests are forgotten by name after a while. Not responsible for: time that belongs to no request (cost/ledger).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tokenmill.core.request import TokenDelta
from tokenmill.core.slo import SLO
from tokenmill.core.ticks import to_seconds, to_ticks
from tokenmill.cost.cells import Cell, Owner
from tokenmill.cost.rates import UnitRate
from tokenmill.cost.tally import Tally
from tokenmill.cost.totals import CHARGED, Line, TokenCounts
from tokenmill.infra.meter import EnergySource

#: Of a request that ended before any step or announcement: it has no part in any sum.
_NO_MODEL = ""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Of the steps that computed a request; idle time and overrun are not in it. One energy source per figure.

    by_line  the seconds by kind of work (totals.CHARGED); they add up
    """

    usd: float
    joules: float
    energy_source: EnergySource
    seconds: float = 0.0
    by_line: dict[Line, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a client saw its request end.

    num_output_tokens       shown, as in `usage`; None: all that were generated
    ttft_s, tpot_s, e2e_s   as in core/slo
    is_complete             False: an error, or the client left
    """

    num_output_tokens: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    is_complete: bool = True


@dataclass(slots=True)
class Entry:
    """`counts` is this request's part of the sums: every change goes to its cell too.

    owner   in the sums, where tenants may share one; payer: whose budget it is
    parent  session that started this one; by_line: ticks, as CHARGED is ordered
    """

    owner: Owner
    payer: Owner | None = None
    parent: str | None = None
    num_prompt_tokens: int | None = None
    num_generated: int = 0
    is_observed: bool = False
    is_complete: bool = False

    tally: Tally = field(default_factory=Tally)
    by_line: list[int] = field(default_factory=lambda: [0] * len(CHARGED))
    counts: TokenCounts = field(default_factory=TokenCounts)

    def cost(self) -> RequestCost:
        tally = self.tally
        seconds = {line: to_seconds(ticks) for line, ticks in zip(CHARGED, self.by_line, strict=True) if ticks}
        return RequestCost(tally.usd, tally.joules, tally.energy_source, tally.seconds, seconds)


class RequestBook:
    """
    cell          where this minute's additions of an owner go
    max_finished  finished requests kept by name; a late delta of an older one opens it anew
    max_open      beyond it the oldest open request is taken for abandoned and closed
    """

    def __init__(self, slo: SLO | None, cell: Callable[[Owner], Cell], *, max_finished: int, max_open: int) -> None:
        self._slo = slo
        self._cell = cell
        self._max_finished = max_finished
        self._max_open = max_open
        self._open: OrderedDict[str, Entry] = OrderedDict()
        self._finished: OrderedDict[str, Entry] = OrderedDict()
        self._ended: list[str] = []

    def begin(self, request_id: str, owner: Owner, *, payer: Owner, parent: str | None, num_prompt_tokens: int) -> None:
        self._finished.pop(request_id, None)  # a client may use an id again; its earlier request is in the sums
        if request_id not in self._open:
            self._add(request_id, Entry(owner, payer, parent, num_prompt_tokens))

    def get(self, request_id: str) -> Entry | None:
        return self._open.get(request_id) or self._finished.get(request_id)

    def take(self, delta: TokenDelta, ticks: int, model: str, units: UnitRate, measured_nj: int | None) -> Owner:
        """Charge one delta's time to its request; returns whose budget it is."""
        late = self._finished.get(delta.request_id)
        if late is not None:
            owner = late.owner._replace(model=model)
            cell = self._cell(owner)
            cell.counts.num_overrun_tokens += len(delta.token_ids)
            cell.tally(Line.OVERRUN).charge(ticks, units, measured_nj)
            return late.payer or owner
        entry = self._open.get(delta.request_id) or self._add(delta.request_id, Entry(Owner(model)))
        # Time belongs to the model whose worker spent it, whatever the request was begun for.
        owner = entry.owner if entry.owner.model == model else entry.owner._replace(model=model)
        cell = self._cell(owner)
        self._charge(entry, cell, delta, ticks, units, measured_nj)
        self._count(entry, cell, delta)
        return entry.payer or owner

    def finish(self, request_id: str, *, is_complete: bool) -> RequestCost:
        entry = self._close(request_id)
        if not entry.is_observed:
            # Without latencies no objective can be seen to be met, unless there is none.
            self._settle(entry, Outcome(is_complete=is_complete))
        return entry.cost()

    def observe(self, request_id: str, outcome: Outcome) -> None:
        entry = self._close(request_id)
        entry.is_observed = True
        self._settle(entry, outcome)

    def take_ended(self) -> list[tuple[str, Entry]]:
        """Those that ended since the last call and are still known by name."""
        ended, self._ended = self._ended, []
        return [(name, self._finished[name]) for name in ended if name in self._finished]

    # -- inside --

    def _add(self, request_id: str, entry: Entry) -> Entry:
        self._open[request_id] = entry
        if len(self._open) > self._max_open:
            self.finish(next(iter(self._open)), is_complete=False)
        return entry

    def _close(self, request_id: str) -> Entry:
        """From open to finished; what was never open (refused before any step) is finished too."""
        if request_id in self._finished:
            return self._finished[request_id]
        entry = self._open.pop(request_id) if request_id in self._open else Entry(Owner(_NO_MODEL))
        self._finished[request_id] = entry
        if entry.owner.model != _NO_MODEL:
            self._ended.append(request_id)
            del self._ended[: -self._max_finished]
        if len(self._finished) > self._max_finished:
            self._finished.popitem(last=False)
        return entry

    def _charge(
        self, entry: Entry, cell: Cell, delta: TokenDelta, ticks: int, units: UnitRate, measured_nj: int | None
    ) -> None:
        entry.tally.charge(ticks, units, measured_nj)
        left, left_nj = ticks, measured_nj
        for index, seconds in enumerate((delta.prefill_s, 0.0, delta.draft_s, delta.rejected_s, delta.transfer_s)):
            if seconds:
                part = min(to_ticks(seconds), left)
                part_nj = None if left_nj is None else left_nj * part // left if left else 0
                cell.tally(CHARGED[index]).charge(part, units, part_nj)
                entry.by_line[index] += part
                left -= part
                left_nj = None if left_nj is None or part_nj is None else left_nj - part_nj
        if left or left_nj:
            cell.tally(Line.DECODE).charge(left, units, left_nj)
            entry.by_line[1] += left

    def _count(self, entry: Entry, cell: Cell, delta: TokenDelta) -> None:
        counts, sums = entry.counts, cell.counts
        if delta.token_ids:
            if not entry.num_generated:
                _set(counts, sums, "num_prompt_tokens", entry.num_prompt_tokens or 0)
            entry.num_generated += len(delta.token_ids)
            _set(counts, sums, "num_output_tokens", entry.num_generated)
        if delta.num_cached_tokens:  # of the first choice only, as the prompt
            told = delta.num_cached_tokens
            prompt = entry.num_prompt_tokens
            _set(counts, sums, "num_cached_tokens", told if prompt is None else min(told, prompt))
        if delta.num_prefill_tokens:
            _set(counts, sums, "num_computed_tokens", counts.num_computed_tokens + delta.num_prefill_tokens)
        if delta.num_draft_tokens:
            _set(counts, sums, "num_draft_tokens", counts.num_draft_tokens + delta.num_draft_tokens)
            _set(counts, sums, "num_rejected_tokens", counts.num_rejected_tokens + delta.num_rejected_tokens)

    def _settle(self, entry: Entry, outcome: Outcome) -> None:
        """Set the counts that only the end tells: what was shown, whether it was good."""
        if entry.owner.model == _NO_MODEL:
            return
        entry.is_complete = outcome.is_complete
        shown = entry.num_generated if outcome.num_output_tokens is None else outcome.num_output_tokens
        is_good = outcome.is_complete and (
            self._slo is None or self._slo.is_met(outcome.ttft_s, outcome.tpot_s, outcome.e2e_s)
        )
        counts, sums = entry.counts, self._cell(entry.owner).counts
        _set(counts, sums, "num_output_tokens", shown)
        _set(counts, sums, "num_overrun_tokens", max(0, entry.num_generated - shown))
        _set(counts, sums, "num_good_tokens", shown if is_good else 0)
        _set(counts, sums, "num_good_requests", int(is_good))
        _set(counts, sums, "num_requests", 1)


def _set(counts: TokenCounts, sums: TokenCounts, name: str, value: int) -> None:
    """Make `value` this request's part of the sums."""
    by = value - getattr(counts, name)
    if by:
        setattr(counts, name, value)
        setattr(sums, name, getattr(sums, name) + by)
