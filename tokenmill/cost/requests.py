"""What each request cost: open ones, the last finished ones, and sums by model and by tenant.

Memory is bounded: finished requests fold into the sums, and only the last few are kept by name.
Not responsible for: time that belongs to no request (cost/life).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from tokenmill.core.request import TokenDelta
from tokenmill.core.slo import SLO
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.tally import Amount, Tally
from tokenmill.cost.totals import TimeKind, TokenCounts
from tokenmill.infra.meter import EnergySource

#: Sums of tenants beyond the limit go here.
OTHER_TENANTS = "(other)"
#: Of a request that ended before any step or announcement: it has no part in any sum.
_NO_MODEL = ""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Of the steps that computed a request; idle time and overrun are not in it. One energy source per figure."""

    usd: float
    joules: float
    energy_source: EnergySource
    seconds: float = 0.0


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


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Sums of one tenant, requests that still run included; `charged` and `overrun` as in TimeKind."""

    charged: Amount
    overrun: Amount
    counts: TokenCounts


@dataclass(slots=True)
class _Group:
    charged: Tally = field(default_factory=Tally)
    overrun: Tally = field(default_factory=Tally)
    counts: TokenCounts = field(default_factory=TokenCounts)


@dataclass(slots=True)
class _Entry:
    """`counts` is this request's part of the sums: every change goes to the model's and the tenant's too."""

    model: str
    group: _Group | None = None
    num_prompt_tokens: int = 0
    num_generated: int = 0
    is_observed: bool = False
    tally: Tally = field(default_factory=Tally)
    counts: TokenCounts = field(default_factory=TokenCounts)


class RequestBook:
    """
    max_finished  finished requests kept by name; a late delta of an older one opens it anew
    max_open      beyond it the oldest open request is taken for abandoned and closed
    max_tenants   beyond it new tenants share one sum
    """

    def __init__(self, slo: SLO | None, *, max_finished: int, max_open: int, max_tenants: int) -> None:
        self._slo = slo
        self._max_finished = max_finished
        self._max_open = max_open
        self._max_tenants = max_tenants
        self._open: OrderedDict[str, _Entry] = OrderedDict()
        self._finished: OrderedDict[str, _Entry] = OrderedDict()
        self._tenants: dict[str, _Group] = {}
        self.counts_by_model: dict[str, TokenCounts] = {}

    def begin(self, request_id: str, model: str, tenant: str | None, num_prompt_tokens: int) -> None:
        self._finished.pop(request_id, None)  # a client may use an id again; its earlier request is in the sums
        if request_id not in self._open:
            entry = self._add(request_id, model)
            entry.num_prompt_tokens = num_prompt_tokens
            self._join(entry, tenant)

    def take(self, delta: TokenDelta, model: str, rate: DeviceRate, joules: float | None) -> TimeKind:
        """Charge one delta's seconds to its request; says whether somebody still waited for it."""
        late = self._finished.get(delta.request_id)
        if late is not None:
            self._take_overrun(late, delta, model, rate, joules)
            return TimeKind.OVERRUN
        entry = self._open.get(delta.request_id) or self._add(delta.request_id, model)
        entry.tally.charge(delta.seconds, rate, joules)
        if entry.group is not None:
            entry.group.charged.charge(delta.seconds, rate, joules)
        entry.num_generated += len(delta.token_ids)
        if entry.num_generated:
            self._set(entry, "num_prompt_tokens", entry.num_prompt_tokens)
            self._set(entry, "num_output_tokens", entry.num_generated)
        if delta.num_cached_tokens:
            self._set(entry, "num_cached_tokens", delta.num_cached_tokens)
        return TimeKind.CHARGED

    def finish(
        self, request_id: str, *, is_complete: bool, tenant: str | None, num_prompt_tokens: int | None
    ) -> RequestCost:
        entry = self._close(request_id)
        if not entry.is_observed:
            # Without latencies no objective can be seen to be met, unless there is none.
            self._settle(entry, Outcome(is_complete=is_complete))
        if num_prompt_tokens is not None:
            entry.num_prompt_tokens = num_prompt_tokens
        if entry.num_generated:
            self._set(entry, "num_prompt_tokens", entry.num_prompt_tokens)
        self._join(entry, tenant)
        return self.cost(request_id)

    def observe(self, request_id: str, outcome: Outcome) -> None:
        entry = self._close(request_id)
        entry.is_observed = True
        self._settle(entry, outcome)

    def cost(self, request_id: str) -> RequestCost:
        """So far. A request that no step has computed costs nothing, and neither does one long forgotten."""
        entry = self._open.get(request_id) or self._finished.get(request_id)
        amount = entry.tally.freeze() if entry else Amount()
        return RequestCost(amount.usd, amount.joules, amount.energy_source, amount.seconds)

    def tenants(self) -> dict[str, GroupTotals]:
        return {
            name: GroupTotals(group.charged.freeze(), group.overrun.freeze(), replace(group.counts))
            for name, group in self._tenants.items()
        }

    def _add(self, request_id: str, model: str) -> _Entry:
        entry = self._open[request_id] = _Entry(model)
        if len(self._open) > self._max_open:
            self.finish(next(iter(self._open)), is_complete=False, tenant=None, num_prompt_tokens=None)
        return entry

    def _close(self, request_id: str) -> _Entry:
        """From open to finished; what was never open (refused before any step) is finished too."""
        if request_id in self._finished:
            return self._finished[request_id]
        entry = self._open.pop(request_id) if request_id in self._open else _Entry(_NO_MODEL)
        self._finished[request_id] = entry
        if len(self._finished) > self._max_finished:
            self._finished.popitem(last=False)
        return entry

    def _settle(self, entry: _Entry, outcome: Outcome) -> None:
        """Set the counts that only the end tells: what was shown, whether it was good."""
        if entry.model == _NO_MODEL:
            return
        shown = entry.num_generated if outcome.num_output_tokens is None else outcome.num_output_tokens
        is_good = outcome.is_complete and (
            self._slo is None or self._slo.is_met(outcome.ttft_s, outcome.tpot_s, outcome.e2e_s)
        )
        self._set(entry, "num_output_tokens", shown)
        self._set(entry, "num_overrun_tokens", max(0, entry.num_generated - shown))
        self._set(entry, "num_good_tokens", shown if is_good else 0)
        self._set(entry, "num_good_requests", int(is_good))
        self._set(entry, "num_requests", 1)

    def _take_overrun(
        self, entry: _Entry, delta: TokenDelta, model: str, rate: DeviceRate, joules: float | None
    ) -> None:
        self._model_counts(model).num_overrun_tokens += len(delta.token_ids)
        if entry.group is not None:
            entry.group.overrun.charge(delta.seconds, rate, joules)
            entry.group.counts.num_overrun_tokens += len(delta.token_ids)

    def _set(self, entry: _Entry, name: str, value: int) -> None:
        """Make `value` this request's part of the sums."""
        by = value - getattr(entry.counts, name)
        if by == 0:
            return
        setattr(entry.counts, name, value)
        for counts in (self._model_counts(entry.model), entry.group and entry.group.counts):
            if counts is not None:
                setattr(counts, name, getattr(counts, name) + by)

    def _join(self, entry: _Entry, tenant: str | None) -> None:
        """Put a request into its tenant's sums, with what it has already."""
        if tenant is None or entry.group is not None:
            return
        if tenant not in self._tenants and len(self._tenants) >= self._max_tenants:
            tenant = OTHER_TENANTS
        entry.group = self._tenants.setdefault(tenant, _Group())
        entry.group.charged.add(entry.tally.freeze())
        entry.group.counts += entry.counts

    def _model_counts(self, model: str) -> TokenCounts:
        return self.counts_by_model.setdefault(model, TokenCounts())
