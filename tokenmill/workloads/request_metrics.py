"""What was observed of each request, and the report over all of them. Pure: no clock, no sockets.

Failed requests are counted apart and never enter a latency or a throughput. Not responsible for: money (report_cost).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenmill.core.slo import SLO
from tokenmill.workloads.percentiles import spread


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it; seconds on one clock.

    chunk_s            when each chunk that carried output arrived, in order
    num_prompt_tokens  by the server's count (usage), num_cached_tokens of them from its prefix cache
    num_output_tokens  by the server's count
    usd, joules        what the server says it cost; None: it does not say
    error              None: it ended as asked
    """

    sent_s: float
    end_s: float
    chunk_s: tuple[float, ...] = ()
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str | None = None
    usd: float | None = None
    joules: float | None = None
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        return self.chunk_s[0] - self.sent_s if self.chunk_s else None

    @property
    def e2e_s(self) -> float | None:
        return self.chunk_s[-1] - self.sent_s if self.chunk_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between tokens, the first excluded; None for a single token."""
        if not self.chunk_s or self.num_output_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.num_output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Gaps between chunks as the client saw them; a server that sends several tokens at once has fewer."""
        return [later - earlier for earlier, later in pairwise(self.chunk_s)]


def summarise(records: Sequence[RequestRecord], slo: SLO | None) -> dict[str, object]:
    """The report: counts, rates over the time from first send to last end, latencies, goodput under `slo`."""
    ok = [record for record in records if record.is_ok]
    duration_s = duration(records)
    report: dict[str, object] = {"num_requests": len(records), "num_ok": len(ok), "num_failed": len(records) - len(ok)}
    report["errors"] = dict(Counter(record.error for record in records if record.error is not None))
    report["finish_reasons"] = dict(Counter(record.finish_reason for record in ok))
    report["duration_s"] = duration_s
    report["num_in_flight_mean"] = _mean_in_flight(records, duration_s)
    report |= _throughput(ok, duration_s)
    report |= spread("ttft_s", [value for r in ok if (value := r.ttft_s) is not None])
    report |= spread("tpot_s", [value for r in ok if (value := r.tpot_s) is not None])
    report |= spread("itl_s", [gap for r in ok for gap in r.itl_s])
    report |= spread("e2e_s", [value for r in ok if (value := r.e2e_s) is not None])
    tpot_s = report["tpot_s_p50"]
    report["interactivity_p50"] = 1 / tpot_s if isinstance(tpot_s, float) and tpot_s > 0 else None
    return report | _goodput(ok, slo, duration_s)


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


def _throughput(ok: Sequence[RequestRecord], duration_s: float) -> dict[str, object]:
    num_input = sum(r.num_prompt_tokens for r in ok)
    num_cached = sum(r.num_cached_tokens for r in ok)
    num_output = sum(r.num_output_tokens for r in ok)
    counts = {
        "input": num_input,
        "uncached_input": num_input - num_cached,
        "output": num_output,
        "total": num_input + num_output,
    }
    report: dict[str, object] = {f"num_{name}_tokens": count for name, count in counts.items()}
    report |= {f"{name}_tput_per_s": _rate(count, duration_s) for name, count in counts.items()}
    return report | {"request_tput_per_s": _rate(len(ok), duration_s)}


def _goodput(ok: Sequence[RequestRecord], slo: SLO | None, duration_s: float) -> dict[str, object]:
    if slo is None:
        return {"slo": None}
    num_good, num_tokens = good_tokens(ok, slo)
    return {
        "slo": str(slo),
        "num_good_requests": num_good,
        "num_good_tokens": num_tokens,
        "goodput_requests_per_s": _rate(num_good, duration_s),
        "goodput_tokens_per_s": _rate(num_tokens, duration_s),
    }


def _rate(count: float, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None


def _mean_in_flight(records: Sequence[RequestRecord], duration_s: float) -> float | None:
    return _rate(sum(record.end_s - record.sent_s for record in records), duration_s)
