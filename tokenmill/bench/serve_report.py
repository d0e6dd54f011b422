"""The report of one load: figures of the whole run and of its steady part, cost, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.bench.load import LoadResult
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.workloads.invariants import broken_invariants
from tokenmill.workloads.percentiles import percentile
from tokenmill.workloads.report_cost import cost_report
from tokenmill.workloads.request_metrics import duration, summarise, unloaded_slo
from tokenmill.workloads.request_record import RequestRecord
from tokenmill.workloads.sizes import reusable_turn_tokens
from tokenmill.workloads.steady import steady_report

_BUSY_SHARE = 0.8
_LEAK_SHARE = 0.02


def serve_report(
    bench: ServeBench,
    result: LoadResult,
    unloaded: Sequence[RequestRecord],
    usd_per_hour: float | None,
    client_time_s: tuple[float, float],
    num_overhead: int,
) -> dict[str, Any]:
    """
    client_time_s  CPU seconds of this process, and seconds, during the load
    num_overhead   tokens that the server's template adds to each prompt
    """
    records = result.records
    slo, source = _slo(bench, unloaded)
    report: dict[str, Any] = summarise(records, slo)
    report |= {"slo_source": source}
    ok = [record for record in records if record.is_ok]
    report["num_sent"] = len(result.sent)
    report["num_cancelled"] = len(result.sent) - len(records)
    report["num_abandoned_turns"] = result.num_abandoned_turns
    report["num_without_usage"] = sum(1 for record in ok if not record.has_usage)
    report["isl_mean"] = _mean([record.num_prompt_tokens for record in ok])
    report["osl_mean"] = _mean([record.num_output_tokens for record in ok])
    report["isl_asked_mean"] = _mean([record.isl for record in records if record.isl is not None])
    report["osl_asked_mean"] = _mean([record.osl for record in records if record.osl is not None])
    report |= _cache(report, result, num_overhead)
    report["usd_charged"] = _sum([record.usd for record in ok])
    report["joules_charged"] = _sum([record.joules for record in ok])
    report |= _cost(bench, report, records, usd_per_hour)
    report["asked_level"] = bench.load.asked_level
    report["steady"] = steady_report(records, bench.load.asked_level)
    report["client"] = _client(result, *client_time_s)
    report |= {
        "client_cpu_share": client_time_s[0] / client_time_s[1],
        "late_s_p99": _p99([record.late_s for record in records]),
    }
    report["in_flight_counted_mean"] = result.in_flight_mean
    slack_s = max(0.005, report["client"]["timer_lag_s_p99"] or 0.0)
    report["broken_invariants"] = broken_invariants(report, records, result.in_flight_mean, slack_s)[:20]
    report["problems"] = _problems(report, result)
    report["is_complete"] = result.stopped is None
    report["is_valid"] = not report["broken_invariants"] and result.stopped is None and report["num_ok"] > 0
    return report


def _slo(bench: ServeBench, unloaded: Sequence[RequestRecord]) -> tuple[Any, str]:
    if bench.slo is not None:
        return bench.slo, "given"
    if bench.load.workload is not None and bench.load.workload.slo is not None:
        return bench.load.workload.slo, "workload"
    return unloaded_slo(unloaded), "3 x unloaded median"


def _cost(
    bench: ServeBench, report: dict[str, Any], records: Sequence[RequestRecord], usd_per_hour: float | None
) -> dict[str, Any]:
    report_by_watts = cost_report(
        duration_s=duration(records),
        num_input_tokens=int(report["num_input_tokens"]),
        num_output_tokens=int(report["num_output_tokens"]),
        num_good_tokens=report.get("num_good_tokens"),
        usd_per_hour=None if usd_per_hour is None else usd_per_hour / bench.num_devices,
        watts=None if bench.watts is None else bench.watts / bench.num_devices,
        num_devices=bench.num_devices,
    )
    return report_by_watts | _energy(bench, report)


def _energy(bench: ServeBench, report: dict[str, Any]) -> dict[str, Any]:
    """Where the joules come from; without given watts those that the server charged, where it does."""
    if bench.watts is not None:
        return {"energy_source": "given watts"}
    charged, num_output = report["joules_charged"], report["num_output_tokens"]
    if charged is None or not num_output:
        return {"energy_source": None}
    return {"energy_source": "charged by the server", "joules_total": charged, "joules_per_token": charged / num_output}


def _cache(report: dict[str, Any], result: LoadResult, num_overhead: int) -> dict[str, Any]:
    """What the server's prefix cache gave, beside the most that this load alone could have filled it with."""
    num_input = report["num_input_tokens"]
    turns = [due.turn for due, _ in result.sent]
    asked = sum(turn.num_prompt_tokens for turn in turns)
    possible = (reusable_turn_tokens(turns) + num_overhead * len(turns)) / asked if asked else 0.0
    return {
        "cached_share": (num_input - report["num_uncached_input_tokens"]) / num_input if num_input else None,
        "cacheable_share": min(1.0, possible),
    }


def _client(result: LoadResult, cpu_s: float, wall_s: float) -> dict[str, Any]:
    num_chunks = sum(len(record.chunk_s) for record in result.records)
    shared = {"num_chunks": num_chunks, "timer_lag_s_p99": _p99(result.lag_s)}
    return {"cpu_s": cpu_s, "cpu_share": cpu_s / wall_s, **shared}


def _problems(report: dict[str, Any], result: LoadResult) -> list[str]:
    """In words, for people; an empty list is what one hopes for."""
    problems = [f"the figures contradict each other: {broken}" for broken in report["broken_invariants"][:3]]
    if result.stopped is not None:
        problems.append(f"stopped early, {report['num_requests']} requests are in this report: {result.stopped}")
    if report["num_ok"] == 0:
        problems.append("no request succeeded: there is nothing to measure")
    if report["num_failed"]:
        problems.append(
            f"{report['num_failed']} of {report['num_requests']} requests failed and are in no latency or throughput"
        )
    if report["num_abandoned_turns"]:
        problems.append(f"{report['num_abandoned_turns']} turns were not sent because one before them failed")
    if report["num_without_usage"]:
        problems.append(
            f"{report['num_without_usage']} answers had no usage: their output tokens are chunks, their prompt "
            "tokens those asked for"
        )
    return problems + _load_problems(report)


def _load_problems(report: dict[str, Any]) -> list[str]:
    """Where the load was not what was asked for, or the client was in the way."""
    problems, client = [], report["client"]
    lag_s, tpot_s, late_s, ttft_s = (
        client["timer_lag_s_p99"], report["tpot_s_p50"], report["late_s_p99"], report["ttft_s_p50"],
    )  # fmt: skip
    if client["cpu_share"] > _BUSY_SHARE:
        problems.append(f"the client is the bottleneck: it used {client['cpu_share']:.0%} of a core; spread the load")
    elif lag_s and tpot_s and lag_s > tpot_s / 2 and lag_s > 0.005:
        problems.append(f"the client was held up by {lag_s * 1e3:.0f} ms (p99): ITL and TTFT include that")
    if late_s and ttft_s and late_s > 0.1 * ttft_s and late_s > 0.01:
        problems.append(f"requests were sent up to {late_s * 1e3:.0f} ms (p99) after they were due")
    if report["asked_level"] and report["steady"] is None and report["num_requests"] >= 4 * report["asked_level"]:
        problems.append(
            f"the asked {report['asked_level']} were not in flight together for long: there is no steady part"
        )
    cached, cacheable = report["cached_share"], report["cacheable_share"]
    if cached is not None and cached > cacheable + _LEAK_SHARE:
        problems.append(
            f"{cached:.0%} of the prompts came from the server's cache, this load can give it {cacheable:.0%}: "
            "something filled it before"
        )
    asked, got = report["osl_asked_mean"], report["osl_mean"]
    if asked and got and abs(got - asked) > 0.1 * asked:
        problems.append(f"answers have {got:.0f} tokens where {asked:.0f} were asked for: see ignore_eos")
    return problems


def _p99(values: Sequence[float]) -> float | None:
    return percentile(values, 99) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
