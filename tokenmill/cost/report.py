"""Answers to "what did it cost": the bill of a window, of a tenant, a session or a model, cut into groups.

Read from the parts of a ledger or of its file alike. Pure. Not responsible for: asking (api, cli), printing tables.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.core.errors import BadRequestError
from tokenmill.cost.cells import DAY, Cell, Owner
from tokenmill.cost.tally import Amount, Tally
from tokenmill.cost.totals import CHARGED, OWNED, Line, Totals, per_mtok

_Part = tuple[int, Owner, Cell]
Parts = Iterable[_Part]

GROUPS = ("model", "tenant", "session", "minute", "hour", "day")
_SPANS = {"minute": 1, "hour": 60, "day": DAY}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")


@dataclass(frozen=True, slots=True)
class Query:
    """
    since_s, until_s       wall time; None: from the beginning, to the end. Minutes count whole: a window is as exact
    model, tenant, session only this one
    with_sub_agents        a session's sub-agents count as the session
    by                     one of GROUPS; None: only the sum
    """

    since_s: float | None = None
    until_s: float | None = None
    model: str | None = None
    tenant: str | None = None
    session: str | None = None
    with_sub_agents: bool = False
    by: str | None = None

    @property
    def is_owners(self) -> bool:
        """It asks for somebody's part: what is the fleet's (idle, start-up) is not in it."""
        return self.tenant is not None or self.session is not None

    def to_dict(self) -> dict[str, Any]:
        names = ("since_s", "until_s", "model", "tenant", "session", "by")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return given | ({"with_sub_agents": True} if self.with_sub_agents else {})


def parse_query(given: dict[str, str], now_s: float) -> Query:
    """From text: `window=30m`, or `since`/`until` in Unix seconds; model, tenant, session, sub_agents, by."""
    known = ("window", "since", "until", "model", "tenant", "session", "sub_agents", "by")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"possible: {', '.join(known)}"
            raise BadRequestError(f"{name!r} is no question about cost: {hint}", param=name)
    if "window" in given and ("since" in given or "until" in given):
        raise BadRequestError("window and since or until say the same twice: drop one", param="window")
    since_s = now_s - _window(given["window"]) if given.get("window") else _time(given, "since")
    until_s = _time(given, "until")
    if since_s is not None and until_s is not None and since_s > until_s:
        raise BadRequestError(f"since={since_s:.0f} is after until={until_s:.0f}: swap them", param="since")
    by = given.get("by") or None
    if by is not None and by not in GROUPS:
        near = difflib.get_close_matches(by, GROUPS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadRequestError(f"by={by!r} is no group: {hint}possible: {', '.join(GROUPS)}", param="by")
    return Query(
        since_s=since_s,
        until_s=until_s,
        model=given.get("model") or None,
        tenant=given.get("tenant") or None,
        session=given.get("session") or None,
        with_sub_agents=given.get("sub_agents", "false").lower() in ("1", "true", "yes"),
        by=by,
    )


def _window(text: str) -> float:
    match = _SPAN.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise BadRequestError(f"window={text!r} is no time span: write e.g. 15m, 24h or 7d", param="window")
    return float(match[1]) * _UNITS[match[2]]


def _time(given: dict[str, str], name: str) -> float | None:
    if not given.get(name):
        return None
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequestError(f"{name}={given[name]!r} is no time: write seconds since 1970", param=name)
    return value


# -- sums --


LineOf = Callable[[str], list[str]]


def report(parts: Parts, query: Query, line_of: LineOf) -> dict[str, Any]:
    """One JSON-able object.

    line_of  a session and those that it was started by
    """
    everything = list(parts)
    chosen = [part for part in everything if _is_asked_for(part[0], part[1], query, line_of)]
    rates = _prefill_rates(everything)
    whole = _sum(chosen)
    body = _describe(whole, OWNED if query.is_owners else tuple(Line), _avoided(chosen, rates))
    if query.is_owners:
        fleet = _sum(part for part in everything if _is_in_window(part[0], query))
        if fleet.charged.money:
            body["usd_with_overhead"] = fleet.whole.usd * whole.charged.money / fleet.charged.money
    if query.by:
        body["groups"] = _groups(chosen, query, rates)
    return {"object": "cost", "query": query.to_dict(), **body}


def _groups(chosen: Sequence[_Part], query: Query, rates: _Rates) -> list[dict[str, Any]]:
    """Spans of time in order, owners by what they cost; what has no tenant or session is "(none)"."""
    assert query.by is not None
    lines = OWNED if query.is_owners or query.by in ("tenant", "session") else tuple(Line)
    groups: dict[str, list[_Part]] = {}
    for part in chosen:
        groups.setdefault(_group(part[0], part[1], query.by), []).append(part)
    described = [
        {query.by: name, **_describe(_sum(group), lines, _avoided(group, rates))} for name, group in groups.items()
    ]
    if query.by in _SPANS:
        return sorted(described, key=lambda group: int(group[str(query.by)]))
    return sorted(described, key=lambda group: -group["usd"]["total"])


def _sum(parts: Iterable[_Part]) -> Totals:
    whole = Cell()
    for _, _, cell in parts:
        whole.add(cell)
    return whole.freeze()


def _is_in_window(minute: int, query: Query) -> bool:
    is_late_enough = query.since_s is None or minute * 60 + 60 > query.since_s
    return is_late_enough and (query.until_s is None or minute * 60 < query.until_s)


def _is_asked_for(minute: int, owner: Owner, query: Query, line_of: LineOf) -> bool:
    if not _is_in_window(minute, query):
        return False
    if query.model not in (None, owner.model) or query.tenant not in (None, owner.tenant):
        return False
    if query.session is None:
        return True
    if owner.session is None:
        return False
    return query.session == owner.session or (query.with_sub_agents and query.session in line_of(owner.session))


def _group(minute: int, owner: Owner, by: str) -> str:
    if by in _SPANS:
        return str((minute - minute % _SPANS[by]) * 60)
    return getattr(owner, by) or "(none)"


@dataclass(frozen=True, slots=True)
class _PrefillRate:
    """What computing one prompt token was measured to cost."""

    seconds: float
    usd: float


_Rates = dict[str, _PrefillRate]


def _prefill_rates(parts: Iterable[_Part]) -> _Rates:
    """By model, over all that is known of it; a model of which nothing was computed has none."""
    prefill: dict[str, Tally] = {}
    num_computed: dict[str, int] = {}
    for _, owner, cell in parts:
        if (tally := cell.lines().get(Line.PREFILL)) is not None:
            prefill.setdefault(owner.model, Tally()).add(tally)
        num_computed[owner.model] = num_computed.get(owner.model, 0) + cell.counts.num_computed_tokens
    return {
        model: _PrefillRate(tally.seconds / num_computed[model], tally.usd / num_computed[model])
        for model, tally in prefill.items()
        if num_computed[model] > 0
    }


def _avoided(parts: Iterable[_Part], rates: _Rates) -> dict[str, Any]:
    """What the prefix cache saved, at the measured price of prefill."""
    tokens, seconds, usd, unpriced = 0, 0.0, 0.0, 0
    for _, owner, cell in parts:
        num, rate = cell.counts.num_cached_tokens, rates.get(owner.model)
        tokens += num
        if rate is None:
            unpriced += num
        else:
            seconds += num * rate.seconds
            usd += num * rate.usd
    return {"tokens": tokens, "seconds": seconds, "usd": usd, **({"unpriced_tokens": unpriced} if unpriced else {})}


def _describe(totals: Totals, lines: Sequence[Line], avoided: dict[str, Any]) -> dict[str, Any]:
    whole, counts = totals.of(lines), totals.counts
    num_total = counts.num_prompt_tokens + counts.num_output_tokens
    num_uncached = num_total - counts.num_cached_tokens
    return {
        "usd": _by_line(totals, lines, lambda amount: amount.usd) | {"total": whole.usd, "charged": totals.charged.usd},
        "seconds": _by_line(totals, lines, lambda amount: amount.seconds)
        | {"total": whole.seconds, "charged": totals.of(CHARGED).seconds},
        "device_seconds": whole.device_seconds,
        "energy": {
            "joules": whole.joules,
            "source": whole.energy_source.value,
            "measured_joules": whole.measured_joules,
            "measured_seconds": whole.metered_s,
            "modelled_joules": whole.unmetered_joules,
        },
        "tokens": {
            "prompt": counts.num_prompt_tokens,
            "cached": counts.num_cached_tokens,
            "computed": counts.num_computed_tokens,
            "output": counts.num_output_tokens,
            "good": counts.num_good_tokens,
            "overrun": counts.num_overrun_tokens,
            "drafts": counts.num_draft_tokens,
            "rejected_drafts": counts.num_rejected_tokens,
        },
        "requests": {"ended": counts.num_requests, "good": counts.num_good_requests},
        "avoided": avoided,
        "usd_per_mtok": {
            "total": per_mtok(whole.usd, num_total),
            "output": per_mtok(whole.usd, counts.num_output_tokens),
            "good": per_mtok(whole.usd, counts.num_good_tokens),
            "uncached": per_mtok(whole.usd, num_uncached),
        },
        "joules_per_token": whole.joules / num_total if num_total else None,
    }


def _by_line(totals: Totals, lines: Iterable[Line], figure: Callable[[Amount], float]) -> dict[str, float]:
    return {line.value: figure(totals.lines[line]) for line in lines}
