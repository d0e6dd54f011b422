"""The line every few seconds: throughput, load, cache, price. Quiet while nothing happens."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from tokenmill.api.metrics import FleetSums
from tokenmill.api.ports import DispatcherPort
from tokenmill.core.clock import Clock
from tokenmill.core.wire import WorkerStats
from tokenmill.cost.totals import Totals, window

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """All models together at one moment."""

    at_s: float
    stats: WorkerStats
    totals: Totals


def describe(before: Look, now: Look) -> str | None:
    """What happened between two looks in one line; None when nothing did."""
    stats, past = now.stats, before.stats
    rates = window(before.totals, now.totals, now.at_s - before.at_s)
    has_moved = rates.prompt_tok_per_s > 0 or rates.generation_tok_per_s > 0
    if not has_moved and stats.num_running == 0 and stats.num_waiting == 0:
        return None
    queries = stats.prefix_queries_total - past.prefix_queries_total
    hits = stats.prefix_hits_total - past.prefix_hits_total
    price = rates.usd_per_mtok_total
    return (
        f"prompt {rates.prompt_tok_per_s:.1f} tok/s, generation {rates.generation_tok_per_s:.1f} tok/s, "
        f"running {stats.num_running}, waiting {stats.num_waiting}, KV {100 * stats.kv_usage:.1f} %, "
        f"prefix hits {100 * hits / queries if queries > 0 else 0:.1f} %, "
        f"{'no price yet' if price is None else f'${price:.4g}/M tokens'}"
    )


class StatsLog:
    def __init__(self, dispatcher: DispatcherPort, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._sums = FleetSums()
        self._before = self._look()

    def line(self) -> str | None:
        """What happened since the last call."""
        before, self._before = self._before, self._look()
        return describe(before, self._before) if self._before.at_s > before.at_s else None

    async def run(self, interval_s: float) -> None:
        """Log for ever; 0: never."""
        while interval_s > 0:
            await asyncio.sleep(interval_s)
            line = self.line()
            if line is not None:
                logger.info("%s", line)

    def _look(self) -> Look:
        by_model = self._sums.look(self._dispatcher.snapshot()).values()
        num_models = max(1, len(by_model))
        stats = WorkerStats(
            num_running=sum(stats.num_running for stats in by_model),
            num_waiting=sum(stats.num_waiting for stats in by_model),
            kv_usage=sum(stats.kv_usage for stats in by_model) / num_models,
            prefix_queries_total=sum(stats.prefix_queries_total for stats in by_model),
            prefix_hits_total=sum(stats.prefix_hits_total for stats in by_model),
        )
        return Look(self._clock.now(), stats, self._dispatcher.ledger.totals())
