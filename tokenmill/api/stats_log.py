"""The line every few seconds: throughput, load, cache, price. Quiet while nothing happens."""

from __future__ import annotations

import asyncio
import logging

from tokenmill.api.looks import Looker, Moment, between
from tokenmill.api.ports import DispatcherPort
from tokenmill.core.clock import Clock

logger = logging.getLogger(__name__)


def describe(moment: Moment) -> str:
    """One line."""
    rates, stats = moment.rates, moment.stats
    price = rates.usd_per_mtok_total
    return (
        f"prompt {rates.prompt_tok_per_s:.1f} tok/s, generation {rates.generation_tok_per_s:.1f} tok/s, "
        f"running {stats.num_running}, waiting {stats.num_waiting}, KV {100 * stats.kv_usage:.1f} %, "
        f"prefix hits {100 * (moment.prefix_hit_share or 0):.1f} %, "
        f"{'no price yet' if price is None else f'${price:.4g}/M tokens'}"
    )


class StatsLog:
    def __init__(self, dispatcher: DispatcherPort, clock: Clock) -> None:
        self._looker = Looker(dispatcher, clock)
        self._before = self._looker.look()

    def line(self) -> str | None:
        """What happened since the last call; None when nothing did."""
        before, self._before = self._before, self._looker.look()
        if self._before.at_s <= before.at_s:
            return None
        moment = between(before, self._before)
        return None if moment.is_idle else describe(moment)

    async def run(self, interval_s: float) -> None:
        """Log for ever; 0: never."""
        while interval_s > 0:
            await asyncio.sleep(interval_s)
            line = self.line()
            if line is not None:
                logger.info("%s", line)
