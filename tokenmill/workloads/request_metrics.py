"""The report over the requests of a run: counts, rates, latencies, goodput, and checks that they agree. Pure.

Failed requests are counted apart and never enter a latency or a throughput; they meet no objective. Not responsible
for: money (report_cost), one request (request_record), which part of a run is steady (steady).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tokenmill.core.slo import SLO
from tokenmill.workloads.percentiles import spread
from tokenmill.workloads.request_record import RequestRecord

#: in the order of SLO.is_met
_OBJECTIVES = ("ttft_s", "tpot_s", "e2e_s")


def summarise(records: Sequence[RequestRecord], slo: SLO | None) -> dict[str, object]:
    """The report: counts, rates over the time from first send to last end, latencies, goodput under `slo`."""
    ok = [record for record in records if record.is_ok]
    duration_s = duration(records)
    report: dict[str, object] = {"num_requests": len(records), "num_ok": len(ok), "num_failed": len(records) - len(ok)}
    report["errors"] = dict(Counter(record.error for record in records if record.error is not None))
    report["finish_reasons"] = dict(Counter(record.finish_reason for record in ok))
    report["duration_s"] = duration_s
    report["num_in_flight_mean"] = rate(sum(record.end_s - record.sent_s for record in records), duration_s)
    report |= throughput(token_counts(ok), len(ok), duration_s)
    report |= latencies(ok)
    report["tput_per_user"] = tput_per_user(ok)
    return report | _goodput(ok, len(records), slo, duration_s)


def latencies(ok: Sequence[RequestRecord]) -> dict[str, object]:
    report: dict[str, object] = {}
    report |= spread("ttft_s", [value for r in ok if (value := r.ttft_s) is not None])
    report |= spread("tpot_s", [value for r in ok if (value := r.tpot_s) is not None])
    report |= spread("itl_s", [gap for r in ok for gap in r.itl_s])
    report |= spread("e2e_s", [value for r in ok if (value := r.e2e_s) is not None])
    for level in ("p50", "p90"):
        tpot_s = report[f"tpot_s_{level}"]
        report[f"interactivity_{level}"] = 1 / tpot_s if isinstance(tpot_s, float) and tpot_s > 0 else None
    return report


def tput_per_user(ok: Sequence[RequestRecord]) -> float | None:
    """Tokens per second that one user sees, waiting for the first included: output tokens over end-to-end time."""
    seconds = sum(r.e2e_s for r in ok if r.e2e_s)
    return rate(sum(r.num_output_tokens for r in ok if r.e2e_s), seconds)


def duration(records: Sequence[RequestRecord]) -> float:
    """Seconds from the first send to the last end."""
    return max((r.end_s for r in records), default=0.0) - min((r.sent_s for r in records), default=0.0)


def unloaded_slo(records: Sequence[RequestRecord], factor: float = 3.0) -> SLO | None:
    """`factor` x the median TTFT and TPOT of requests that ran alone; None when nothing came back."""
    medians = {
        name: spread(name, [v for r in records if r.is_ok and (v := getattr(r, name)) is not None])[f"{name}_p50"]
        for name in ("ttft_s", "tpot_s")
    }
    bounds = {name: max(1e-4, round(factor * value, 4)) for name, value in medians.items() if value}  # 0.1 ms steps
    return SLO(**bounds) if bounds else None


def good_tokens(ok: Sequence[RequestRecord], slo: SLO) -> tuple[int, int]:
    """(requests, output tokens) of the requests that met every objective."""
    good = [r for r in ok if slo.is_met(r.ttft_s, r.tpot_s, r.e2e_s)]
    return len(good), sum(r.num_output_tokens for r in good)


def token_counts(ok: Sequence[RequestRecord]) -> dict[str, float]:
    num_input = sum(r.num_prompt_tokens for r in ok)
    num_output = sum(r.num_output_tokens for r in ok)
    return {
        "input": num_input,
        "uncached_input": num_input - sum(r.num_cached_tokens for r in ok),
        "output": num_output,
        "total": num_input + num_output,
    }


def throughput(counts: dict[str, float], num_ok: float, duration_s: float) -> dict[str, object]:
    report: dict[str, object] = {f"num_{name}_tokens": count for name, count in counts.items()}
    report |= {f"{name}_tput_per_s": rate(count, duration_s) for name, count in counts.items()}
    return report | {"request_tput_per_s": rate(num_ok, duration_s)}


def _goodput(ok: Sequence[RequestRecord], num_requests: int, slo: SLO | None, duration_s: float) -> dict[str, object]:
    if slo is None:
        return {"slo": None}
    num_good, num_tokens = good_tokens(ok, slo)
    return {
        "slo": str(slo),
        "num_good_requests": num_good,
        "num_good_tokens": num_tokens,
        "good_share": num_good / num_requests if num_requests else None,
        "slo_met_p99": _is_met_at_p99(ok, num_requests, slo),
        "goodput_requests_per_s": rate(num_good, duration_s),
        "goodput_tokens_per_s": rate(num_tokens, duration_s),
    }


def _is_met_at_p99(ok: Sequence[RequestRecord], num_requests: int, slo: SLO) -> bool | None:
    """Each objective against the 99th percentile of its figure, failures above 1 % miss all; None: nothing was sent."""
    if not num_requests:
        return None
    if num_requests - len(ok) > 0.01 * num_requests:
        return False
    p99 = [spread(name, [v for r in ok if (v := getattr(r, name)) is not None])[f"{name}_p99"] for name in _OBJECTIVES]
    return slo.is_met(*p99)


def rate(count: float, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None
