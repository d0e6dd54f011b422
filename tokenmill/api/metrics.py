"""/metrics: what the fleet and the ledger say at the moment of the scrape, beside what the door observed itself.

Names, help texts and vLLM's names: core/metric_names.py. Not responsible for: histograms (request_metrics.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tokenmill.api.ports import DispatcherPort
from tokenmill.core import metric_names as names
from tokenmill.core.clock import Clock
from tokenmill.core.metric_names import Metric, MetricType
from tokenmill.core.wire import WorkerStats
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.totals import Line, Totals
from tokenmill.operations.members import MemberState, MemberView

Family = CounterMetricFamily | GaugeMetricFamily
Sample = tuple[tuple[str, ...], float]

_SUMMED = (
    "num_preemptions_total",
    "prefix_queries_total",
    "prefix_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "steps_total",
    "drafts_total",
    "draft_tokens_total",
    "accepted_tokens_total",
)


class FleetSums:
    """Counters of every model over all its workers and all their lives: a restart does not take them back.

    What a life counted after the last look at it is lost with it.
    """

    def __init__(self) -> None:
        self._ended: dict[str, WorkerStats] = {}
        self._last: dict[str, MemberView] = {}

    def look(self, members: Sequence[MemberView]) -> dict[str, WorkerStats]:
        """Sums by model; its gauges are of now, kv_usage the mean over ready workers."""
        for view in members:
            last = self._last.get(view.worker_id)
            if last is not None and last.incarnation != view.incarnation:
                self._ended[last.model] = _add(self._ended.get(last.model, WorkerStats()), last.stats)
            self._last[view.worker_id] = view
        return {model: self._sum(model, members) for model in {view.model for view in members}}

    def _sum(self, model: str, members: Sequence[MemberView]) -> WorkerStats:
        total = self._ended.get(model, WorkerStats())
        views = [view for view in members if view.model == model]
        for view in views:
            total = _add(total, view.stats)
        ready = [view.stats for view in views if view.state is MemberState.READY]
        return msgspec.structs.replace(
            total,
            num_running=sum(stats.num_running for stats in ready),
            num_waiting=sum(stats.num_waiting for stats in ready) + sum(view.num_unseen for view in views),
            kv_usage=sum(stats.kv_usage for stats in ready) / len(ready) if ready else 0.0,
        )


def _add(one: WorkerStats, other: WorkerStats) -> WorkerStats:
    by_position = zip_longest(one.accepted_at_total, other.accepted_at_total, fillvalue=0)
    return WorkerStats(
        **{name: getattr(one, name) + getattr(other, name) for name in _SUMMED},
        accepted_at_total=tuple(a + b for a, b in by_position),
    )


#: Metric -> field of WorkerStats.
_FLEET_FIELDS = {
    names.NUM_REQUESTS_RUNNING: "num_running",
    names.NUM_REQUESTS_WAITING: "num_waiting",
    names.KV_CACHE_USAGE_PERC: "kv_usage",
    names.NUM_PREEMPTIONS: "num_preemptions_total",
    names.PREFIX_CACHE_QUERIES: "prefix_queries_total",
    names.PREFIX_CACHE_HITS: "prefix_hits_total",
    names.SPEC_DECODE_NUM_DRAFTS: "drafts_total",
    names.SPEC_DECODE_NUM_DRAFT_TOKENS: "draft_tokens_total",
    names.SPEC_DECODE_NUM_ACCEPTED_TOKENS: "accepted_tokens_total",
}
#: Metric -> field of TokenCounts.
_COUNT_FIELDS = {
    names.GOOD_TOKENS: "num_good_tokens",
    names.GOOD_REQUESTS: "num_good_requests",
    names.OVERRUN_TOKENS: "num_overrun_tokens",
}


class FleetCollector(Collector):
    """Asked by the registry at each scrape."""

    def __init__(self, dispatcher: DispatcherPort, clock: Clock, rate: DeviceRate | None = None) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._rate = rate
        self._sums = FleetSums()

    def describe(self) -> Iterable[Family]:
        """Nothing: asking at registration would look at a fleet that is not there yet."""
        return []

    def collect(self) -> Iterable[Family]:
        members = self._dispatcher.snapshot()
        ledger = self._dispatcher.ledger
        totals = {model: ledger.totals(model) for model in ledger.models()}
        yield from self._fleet(self._sums.look(members))
        yield from _workers(members, self._rate)
        yield from _money(totals)
        unexplained_s = ledger.check_balance(self._clock.now()).unexplained_s
        yield _family(names.LEDGER_UNEXPLAINED_SECONDS, [((), unexplained_s)])

    def _fleet(self, sums: dict[str, WorkerStats]) -> Iterable[Family]:
        for metric, field in _FLEET_FIELDS.items():
            yield _family(metric, [((model,), getattr(sums[model], field)) for model in sorted(sums)])
        yield _family(
            names.SPEC_DECODE_NUM_ACCEPTED_TOKENS_PER_POS,
            [
                ((model, str(position)), count)
                for model in sorted(sums)
                for position, count in enumerate(sums[model].accepted_at_total)
            ],
        )
        yield _family(
            names.SPEC_DECODE_ACCEPTANCE_LENGTH,
            [
                ((model,), 1 + stats.accepted_tokens_total / stats.drafts_total)
                for model, stats in sorted(sums.items())
                if stats.drafts_total
            ],
        )


def _workers(members: Sequence[MemberView], rate: DeviceRate | None) -> Iterable[Family]:
    ups = [((view.model, view.worker_id), float(view.state is MemberState.READY)) for view in members]
    yield _family(names.WORKER_UP, ups)
    yield _family(names.WORKER_RESTARTS, [((view.worker_id,), view.incarnation) for view in members])
    if rate is not None:
        yield _family(names.DEVICE_USD_PER_HOUR, [((view.worker_id,), rate.usd_per_hour) for view in members])


def _money(totals: dict[str, Totals]) -> Iterable[Family]:
    items = sorted(totals.items())
    yield _family(names.COST_USD, [((model,), total.whole.usd) for model, total in items])
    yield _family(names.USD_PER_MTOK, [sample for model, total in items for sample in _usd_per_mtok(model, total)])
    yield _family(
        names.ENERGY_JOULES,
        [
            ((model, source), joules)
            for model, total in items
            for source, joules in (
                ("measured", total.whole.measured_joules),
                ("modelled", total.whole.unmetered_joules),
            )
        ],
    )
    yield _family(
        names.DEVICE_SECONDS,
        [
            ((model, line.value), amount.device_seconds)
            for model, total in items
            for line, amount in total.lines.items()
            if line is not Line.STORAGE
        ],
    )
    for metric, field in _COUNT_FIELDS.items():
        yield _family(metric, [((model,), getattr(total.counts, field)) for model, total in items])


def _usd_per_mtok(model: str, total: Totals) -> list[Sample]:
    """No sample for a kind that has no tokens yet: there is no such price."""
    kinds = (
        ("total", total.usd_per_mtok_total),
        ("output", total.usd_per_mtok_output),
        ("good", total.usd_per_mtok_good),
    )
    return [((model, kind), usd) for kind, usd in kinds if usd is not None]


def _family(metric: Metric, samples: Iterable[Sample]) -> Family:
    make = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
    family = make(metric.stem, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
