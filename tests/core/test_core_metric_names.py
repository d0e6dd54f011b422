"""The metric vocabulary is well formed, and every figure that vLLM has too is called as vLLM calls it."""

from __future__ import annotations

import re

import pytest

from tokenmill.core import metric_names
from tokenmill.core.metric_names import ALL, Metric, MetricType

METRICS = list(ALL.values())


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"tokenmill_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
    assert not metric.stem.endswith("_total")
    assert metric.help.endswith(".")
    assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)


@pytest.mark.parametrize("metric", [m for m in METRICS if m.vllm_name], ids=lambda m: m.name)
def test_vllm_names_share_the_stem(metric: Metric) -> None:
    assert metric.vllm_name == f"vllm:{metric.stem.removeprefix('tokenmill_')}"


def test_constants_and_table_agree() -> None:
    constants = [value for value in vars(metric_names).values() if isinstance(value, Metric)]
    assert sorted(m.name for m in constants) == sorted(ALL)


def test_what_dashboards_rely_on() -> None:
    assert {
        "tokenmill_num_requests_running",
        "tokenmill_num_requests_waiting",
        "tokenmill_kv_cache_usage_perc",
        "tokenmill_prefix_cache_hits_total",
        "tokenmill_prefix_cache_queries_total",
        "tokenmill_time_to_first_token_seconds",
        "tokenmill_inter_token_latency_seconds",
        "tokenmill_e2e_request_latency_seconds",
        "tokenmill_prompt_tokens_total",
        "tokenmill_generation_tokens_total",
        "tokenmill_cost_usd_total",
        "tokenmill_usd_per_mtok",
        "tokenmill_energy_joules_total",
        "tokenmill_good_tokens_total",
        "tokenmill_device_seconds_total",
    } <= ALL.keys()
    assert metric_names.USD_PER_MTOK.labels[-1] == "kind"
    assert metric_names.ENERGY_JOULES.labels[-1] == "source"
    assert metric_names.DEVICE_SECONDS.labels[-1] == "kind"


def test_the_client_library_takes_every_metric() -> None:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

    classes = {MetricType.COUNTER: Counter, MetricType.GAUGE: Gauge, MetricType.HISTOGRAM: Histogram}
    registry = CollectorRegistry()
    for metric in METRICS:
        made = classes[metric.type](metric.stem, metric.help, metric.labels, registry=registry)
        made.labels(*("x" for _ in metric.labels)) if metric.labels else made
    page = generate_latest(registry).decode()
    for metric in METRICS:
        assert f"# TYPE {metric.name} {metric.type}" in page
