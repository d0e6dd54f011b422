"""What the door observes of each request: latencies, sizes, outcomes, as Prometheus histograms and counters.

Not responsible for: fleet and money (metrics.py reads those from the dispatcher at scrape time).
"""

from __future__ import annotations

from collections import deque

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from tokenmill.core import metric_names as names
from tokenmill.core.metric_names import Metric
from tokenmill.core.request import FinishReason
from tokenmill.cost.requests import Outcome

disable_created_metrics()  # a second sample per series that nobody asks for

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)
_TOKENS = tuple(float(2**i) for i in range(0, 21, 2))  # 1 to 1,048,576

#: The histograms kept here and the upper bounds of their buckets.
HISTOGRAMS: dict[Metric, tuple[float, ...]] = {
    names.TIME_TO_FIRST_TOKEN: _LATENCY_S,
    names.INTER_TOKEN_LATENCY: _GAP_S,
    names.TIME_PER_OUTPUT_TOKEN: _GAP_S,
    names.E2E_REQUEST_LATENCY: _LATENCY_S,
    names.REQUEST_QUEUE_TIME: _LATENCY_S,
    names.REQUEST_PROMPT_TOKENS: _TOKENS,
    names.REQUEST_GENERATION_TOKENS: _TOKENS,
}
#: Of these the last values are kept, for quantiles of now; and how many.
_RECENT = (names.TIME_TO_FIRST_TOKEN, names.TIME_PER_OUTPUT_TOKEN)
_NUM_RECENT = 256
COUNTERS = (names.PROMPT_TOKENS, names.GENERATION_TOKENS, names.REQUEST_SUCCESS, names.REQUEST_ERRORS)


class RequestMetrics:
    """Owns its registry: two servers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._histograms = {m: Histogram(m.stem, m.help, m.labels, buckets=buckets, registry=self.registry)
                            for m, buckets in HISTOGRAMS.items()}  # fmt: skip
        self._counters = {m: Counter(m.stem, m.help, m.labels, registry=self.registry) for m in COUNTERS}

        self._recent: dict[Metric, deque[float]] = {m: deque(maxlen=_NUM_RECENT) for m in _RECENT}

    def track(self, model: str, num_prompt_tokens: int, arrival_s: float) -> RequestTrack:
        return RequestTrack(self, model, num_prompt_tokens, arrival_s)

    def count_error(self, code: str) -> None:
        self._counters[names.REQUEST_ERRORS].labels(code).inc()

    def observe(self, metric: Metric, model: str, value: float) -> None:
        self._histograms[metric].labels(model).observe(value)
        if metric in self._recent:
            self._recent[metric].append(value)

    def recent(self, metric: Metric) -> list[float]:
        """The last values of TTFT or TPOT (s), oldest first, of all models."""
        return list(self._recent[metric])

    def count(self, metric: Metric, *labels: str, amount: float = 1) -> None:
        self._counters[metric].labels(*labels).inc(amount)


class RequestTrack:
    """What is measured of one choice. `reason` is how it ended; until something else is known, the client left."""

    def __init__(self, metrics: RequestMetrics, model: str, num_prompt_tokens: int, arrival_s: float) -> None:
        self._metrics = metrics
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._arrival_s = arrival_s
        self._first_s: float | None = None
        self._last_s = arrival_s
        self.num_output_tokens = 0
        self.reason = FinishReason.ABORT

    @property
    def ttft_s(self) -> float | None:
        return None if self._first_s is None else self._first_s - self._arrival_s

    @property
    def tpot_s(self) -> float | None:
        """None for a request of one token."""
        if self._first_s is None or self.num_output_tokens < 2:
            return None
        return (self._last_s - self._first_s) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        return None if self._first_s is None else self._last_s - self._arrival_s

    def queued(self, seconds: float) -> None:
        self._metrics.observe(names.REQUEST_QUEUE_TIME, self._model, seconds)

    def output(self, num_output_tokens: int, now_s: float) -> None:
        """The running total after a frame; the new tokens behind a request's first share the gap before the frame."""
        count = num_output_tokens - self.num_output_tokens
        if count <= 0:
            return
        if self._first_s is None:
            self._first_s = now_s
            self._metrics.observe(names.TIME_TO_FIRST_TOKEN, self._model, now_s - self._arrival_s)
            gap_s, num_gaps = 0.0, count - 1
        else:
            gap_s, num_gaps = (now_s - self._last_s) / count, count
        for _ in range(num_gaps):
            self._metrics.observe(names.INTER_TOKEN_LATENCY, self._model, gap_s)
        self._last_s = now_s
        self.num_output_tokens = num_output_tokens

    def outcome(self) -> Outcome:
        """The same for the ledger, which decides whether these were good tokens."""
        return Outcome(
            num_output_tokens=self.num_output_tokens,
            ttft_s=self.ttft_s,
            tpot_s=self.tpot_s,
            e2e_s=self.e2e_s,
            is_complete=self.reason in (FinishReason.STOP, FinishReason.LENGTH),
        )

    def finish(self) -> None:
        """Once, however the choice ended; one without output (refused, or left early) leaves nothing but that."""
        metrics, model = self._metrics, self._model
        metrics.count(names.REQUEST_SUCCESS, model, self.reason.value)
        if not self.num_output_tokens:
            return
        metrics.count(names.PROMPT_TOKENS, model, amount=self._num_prompt_tokens)
        metrics.count(names.GENERATION_TOKENS, model, amount=self.num_output_tokens)
        metrics.observe(names.REQUEST_PROMPT_TOKENS, model, self._num_prompt_tokens)
        metrics.observe(names.REQUEST_GENERATION_TOKENS, model, self.num_output_tokens)
        for metric, value in ((names.E2E_REQUEST_LATENCY, self.e2e_s), (names.TIME_PER_OUTPUT_TOKEN, self.tpot_s)):
            if value is not None:
                metrics.observe(metric, model, value)
