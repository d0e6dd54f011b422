"""Every Prometheus metric of tokenmill: name, type, help, labels, and the vLLM metric that it matches.

Only the vocabulary lives here, so that exporter, dashboards, docs and tests agree; values come from api/metrics.
Counters carry their `_total`; the client library wants the name without it (`Metric.stem`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "tokenmill_"


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`vllm_name` is what a dashboard made for vLLM would call the same figure; None where vLLM has none."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    vllm_name: str | None = None

    @property
    def stem(self) -> str:
        return self.name.removesuffix("_total") if self.type is MetricType.COUNTER else self.name


ALL: dict[str, Metric] = {}

_MODEL = ("model_name",)


def _metric(type_: MetricType, stem: str, help_: str, labels: tuple[str, ...], vllm: str | None) -> Metric:
    metric = Metric(PREFIX + stem, type_, help_, labels, f"vllm:{vllm}" if vllm else None)
    assert metric.name not in ALL, f"metric {metric.name} is declared twice"
    ALL[metric.name] = metric
    return metric


def _counter(stem: str, help_: str, labels: tuple[str, ...] = _MODEL, vllm: str | None = None) -> Metric:
    return _metric(MetricType.COUNTER, f"{stem}_total", help_, labels, vllm)


def _gauge(stem: str, help_: str, labels: tuple[str, ...] = _MODEL, vllm: str | None = None) -> Metric:
    return _metric(MetricType.GAUGE, stem, help_, labels, vllm)


def _histogram(stem: str, help_: str, labels: tuple[str, ...] = _MODEL) -> Metric:
    return _metric(MetricType.HISTOGRAM, stem, help_, labels, stem)


# -- load and cache --
NUM_REQUESTS_RUNNING = _gauge("num_requests_running", "Requests in the running batch.", vllm="num_requests_running")
NUM_REQUESTS_WAITING = _gauge("num_requests_waiting", "Requests in the queue.", vllm="num_requests_waiting")
KV_CACHE_USAGE_PERC = _gauge(
    "kv_cache_usage_perc", "Share of the KV cache used by running requests, 0 to 1.", vllm="kv_cache_usage_perc"
)
NUM_PREEMPTIONS = _counter("num_preemptions", "Requests that lost their KV blocks and waited.", vllm="num_preemptions")
PREFIX_CACHE_QUERIES = _counter(
    "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", vllm="prefix_cache_queries"
)
PREFIX_CACHE_HITS = _counter("prefix_cache_hits", "Prompt tokens served by the prefix cache.", vllm="prefix_cache_hits")

# -- tokens and requests --
PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens of requests, cached ones included.", vllm="prompt_tokens")
GENERATION_TOKENS = _counter("generation_tokens", "Output tokens given to clients.", vllm="generation_tokens")
REQUEST_SUCCESS = _counter(
    "request_success", "Requests that ended, by reason.", (*_MODEL, "finished_reason"), vllm="request_success"
)
REQUEST_ERRORS = _counter("request_errors", "Requests answered with an error, by code.", ("code",))
SPEC_DECODE_NUM_DRAFTS = _counter("spec_decode_num_drafts", "Drafts verified.", vllm="spec_decode_num_drafts")
SPEC_DECODE_NUM_DRAFT_TOKENS = _counter(
    "spec_decode_num_draft_tokens", "Draft tokens verified.", vllm="spec_decode_num_draft_tokens"
)
SPEC_DECODE_NUM_ACCEPTED_TOKENS = _counter(
    "spec_decode_num_accepted_tokens", "Draft tokens accepted.", vllm="spec_decode_num_accepted_tokens"
)
SPEC_DECODE_NUM_ACCEPTED_TOKENS_PER_POS = _counter(
    "spec_decode_num_accepted_tokens_per_pos",
    "Draft tokens accepted, by position behind the newest token, from 0.",
    (*_MODEL, "position"),
    vllm="spec_decode_num_accepted_tokens_per_pos",
)
SPEC_DECODE_ACCEPTANCE_LENGTH = _gauge(
    "spec_decode_acceptance_length", "Mean tokens per verification since start, the one behind the drafts included."
)

# -- latency and sizes --
TIME_TO_FIRST_TOKEN = _histogram("time_to_first_token_seconds", "Arrival to first output token.")
INTER_TOKEN_LATENCY = _histogram("inter_token_latency_seconds", "Each gap between output tokens.")
TIME_PER_OUTPUT_TOKEN = _histogram(
    "request_time_per_output_token_seconds", "Mean gap of a request, the first token excluded."
)
E2E_REQUEST_LATENCY = _histogram("e2e_request_latency_seconds", "Arrival to last output token.")
REQUEST_QUEUE_TIME = _histogram("request_queue_time_seconds", "Time a request waited for its first step.")
REQUEST_PROMPT_TOKENS = _histogram("request_prompt_tokens", "Prompt tokens per request.")
REQUEST_GENERATION_TOKENS = _histogram("request_generation_tokens", "Output tokens per request.")

# -- cost and energy (cost/ledger) --
COST_USD = _counter("cost_usd", "Dollars of all device time paid for: charges, idle, start-up and losses.")
USD_PER_MTOK = _gauge(
    "usd_per_mtok",
    "Dollars of all device time per million tokens since start; kind = total (prompt + output), output, or good.",
    (*_MODEL, "kind"),
)
ENERGY_JOULES = _counter(
    "energy_joules",
    "Energy; source = measured (a meter) or modelled (watts x seconds, for time without a meter). The two add up.",
    (*_MODEL, "source"),
)
DEVICE_SECONDS = _counter(
    "device_seconds",
    "Device-seconds by line of the bill; the lines add up to process time (x ranks of a gang).",
    (*_MODEL, "kind"),
)
GOOD_TOKENS = _counter("good_tokens", "Output tokens of requests that met every latency objective.")
GOOD_REQUESTS = _counter("good_requests", "Requests that met every latency objective.")
OVERRUN_TOKENS = _counter("overrun_tokens", "Tokens computed behind a request's end; neither shown nor in usage.")
DEVICE_USD_PER_HOUR = _gauge("device_usd_per_hour", "Price of one worker's share of its machine.", ("worker_id",))
LEDGER_UNEXPLAINED_SECONDS = _gauge(
    "ledger_unexplained_seconds", "Process seconds that no frame accounts for; above 1 % of all, the bill is wrong.", ()
)

# -- fleet --
WORKER_UP = _gauge("worker_up", "1 while the worker takes requests.", (*_MODEL, "worker_id"))
WORKER_RESTARTS = _counter("worker_restarts", "Times the supervisor started the worker again.", ("worker_id",))
