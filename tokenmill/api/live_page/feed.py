"""The figures of the live page, kept for a while: one point every few seconds, for everybody who watches.

Not responsible for: pages and streams (routes.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from tokenmill.api.looks import Look, Looker, Moment, between
from tokenmill.api.ports import DispatcherPort
from tokenmill.api.request_metrics import RequestMetrics
from tokenmill.core import metric_names as names
from tokenmill.core.clock import Clock
from tokenmill.operations.members import MemberView

INTERVAL_S = 2.0
#: Half an hour.
MAX_POINTS = 900

Point = dict[str, Any]


class Feed:
    """Not thread-safe: it lives in the server's loop. Points are JSON objects; a figure that is not known is null."""

    def __init__(self, dispatcher: DispatcherPort, metrics: RequestMetrics, clock: Clock) -> None:
        self._looker = Looker(dispatcher, clock)
        self._metrics = metrics
        self._before: Look | None = None
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._workers: list[dict[str, Any]] = []
        self._news = asyncio.Event()

    def tick(self) -> None:
        """Take a look, add a point and wake who watches. The first look makes no point."""
        before, self._before = self._before, self._looker.look()
        self._workers = [_worker(view) for view in self._before.members]
        if before is not None and self._before.at_s > before.at_s:
            self._points.append(self._point(between(before, self._before), self._before))
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def run(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(INTERVAL_S)

    def now(self) -> dict[str, Any]:
        """Everything kept: what a page that opens begins with."""
        return {"interval_s": INTERVAL_S, "points": list(self._points), "workers": self._workers}

    async def watch(self, num_points: int = MAX_POINTS) -> AsyncIterator[dict[str, Any]]:
        """The last points kept, then each new one, with the workers as they are."""
        now = self.now()
        yield now | {"points": now["points"][max(0, len(now["points"]) - num_points) :]}
        while True:
            await self._news.wait()
            yield {"points": list(self._points)[-1:], "workers": self._workers}

    def _point(self, moment: Moment, look: Look) -> Point:
        rates, stats, totals = moment.rates, moment.stats, look.totals
        ttft, tpot = (self._metrics.recent(m) for m in (names.TIME_TO_FIRST_TOKEN, names.TIME_PER_OUTPUT_TOKEN))
        return {
            "at": round(time.time(), 3),
            "generation_tok_per_s": rates.generation_tok_per_s,
            "prompt_tok_per_s": rates.prompt_tok_per_s,
            "busy_share": rates.busy_share,
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "kv_usage": stats.kv_usage,
            "prefix_hit_share": moment.prefix_hit_share,
            "acceptance_length": moment.acceptance_length,
            "ttft_s": _quantiles(ttft),
            "tpot_s": _quantiles(tpot),
            "usd_per_mtok_now": rates.usd_per_mtok_total,
            "usd_per_mtok": totals.usd_per_mtok_total,
            "usd_per_mtok_output": totals.usd_per_mtok_output,
            "usd": totals.whole.usd,
            "output_tokens": totals.counts.num_output_tokens,
            "good_tokens": totals.counts.num_good_tokens,
        }


def _quantiles(values: list[float]) -> dict[str, float] | None:
    """Of the last requests; the p99 of few is their maximum."""
    if not values:
        return None
    ranked = sorted(values)
    return {"p50": ranked[len(ranked) // 2], "p99": ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]}


def _worker(view: MemberView) -> dict[str, Any]:
    return {
        "worker_id": view.worker_id,
        "model": view.model,
        "state": view.state.value,
        "reason": view.reason,
        "restarts": view.incarnation,
        "running": view.stats.num_running,
        "waiting": view.stats.num_waiting + view.num_unseen,
        "kv_usage": view.stats.kv_usage,
    }
