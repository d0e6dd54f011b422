"""What a server is doing now: two looks at fleet and ledger make a moment of figures, for the log line and live page.

Not responsible for: showing them (stats_log.py, live_page/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.api.metrics import FleetSums
from tokenmill.api.ports import DispatcherPort
from tokenmill.core.clock import Clock
from tokenmill.core.wire import WorkerStats
from tokenmill.cost.totals import Totals, Window, window
from tokenmill.operations.members import MemberView


@dataclass(frozen=True, slots=True)
class Look:
    """All models together at one moment of the clock."""

    at_s: float
    stats: WorkerStats
    totals: Totals
    members: Sequence[MemberView]


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened between two looks, and how things stand at the later one.

    prefix_hit_share   of the prompt tokens looked up, those found; None when none was looked up
    acceptance_length  tokens per verification of drafts; None when nothing was verified
    """

    rates: Window
    stats: WorkerStats
    prefix_hit_share: float | None
    acceptance_length: float | None

    @property
    def is_idle(self) -> bool:
        has_moved = self.rates.prompt_tok_per_s > 0 or self.rates.generation_tok_per_s > 0
        return not has_moved and self.stats.num_running == 0 and self.stats.num_waiting == 0


class Looker:
    """Keeps the counters of workers that are gone: one looker, one series."""

    def __init__(self, dispatcher: DispatcherPort, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._sums = FleetSums()

    def look(self) -> Look:
        members = self._dispatcher.snapshot()
        by_model = self._sums.look(members).values()
        names = ("prefix_queries_total", "prefix_hits_total", "drafts_total", "accepted_tokens_total")
        stats = WorkerStats(
            num_running=sum(stats.num_running for stats in by_model),
            num_waiting=sum(stats.num_waiting for stats in by_model),
            kv_usage=sum(stats.kv_usage for stats in by_model) / max(1, len(by_model)),
            **{name: sum(getattr(stats, name) for stats in by_model) for name in names},
        )
        return Look(self._clock.now(), stats, self._dispatcher.ledger.totals(), members)


def between(before: Look, now: Look) -> Moment:
    """`now` is later than `before`."""
    stats, past = now.stats, before.stats
    num_drafts = stats.drafts_total - past.drafts_total
    num_accepted = stats.accepted_tokens_total - past.accepted_tokens_total
    return Moment(
        rates=window(before.totals, now.totals, now.at_s - before.at_s),
        stats=stats,
        prefix_hit_share=_share(
            stats.prefix_hits_total - past.prefix_hits_total, stats.prefix_queries_total - past.prefix_queries_total
        ),
        acceptance_length=1 + num_accepted / num_drafts if num_drafts > 0 else None,
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
