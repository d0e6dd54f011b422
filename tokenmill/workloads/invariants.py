"""What must hold on every report, checked where it is made: Little's law, sums, order of times. Pure.

A broken one means that the tool is wrong, not the server: it is named in the report, which then is not valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tokenmill.workloads.request_record import RequestRecord

_TOLERANCE = 0.02


def broken_invariants(
    report: Mapping[str, Any],
    records: Sequence[RequestRecord],
    measured_in_flight: float | None,
    slack_s: float = 0.005,
) -> list[str]:
    """
    measured_in_flight  time-average that the driver counted by itself, from starts and ends as they happened
    slack_s             what the client itself may spend on a request before its send and after its end
    """
    broken = [*_sums(report), *_little(report, len(records), measured_in_flight, slack_s)]
    for index, record in enumerate(records):
        broken += [f"request {index}: {fault}" for fault in _faults(record)]
    return broken


def _sums(report: Mapping[str, Any]) -> list[str]:
    checks = {
        "num_ok + num_failed = num_requests": report["num_ok"] + report["num_failed"] == report["num_requests"],
        "the errors add up to num_failed": sum(report["errors"].values()) == report["num_failed"],
        "the finish reasons add up to num_ok": sum(report["finish_reasons"].values()) == report["num_ok"],
        "input + output = total tokens": report["num_input_tokens"] + report["num_output_tokens"]
        == report["num_total_tokens"],
        "uncached input <= input": 0 <= report["num_uncached_input_tokens"] <= report["num_input_tokens"],
        "good tokens <= output tokens": (report.get("num_good_tokens") or 0) <= report["num_output_tokens"],
    }
    for kind in ("input", "output", "total"):
        tput = report[f"{kind}_tput_per_s"]
        agrees = tput is None or _near(tput * report["duration_s"], report[f"num_{kind}_tokens"], 1e-6)
        checks[f"{kind} throughput x duration = {kind} tokens"] = agrees
    return [f"not {name}" for name, holds in checks.items() if not holds]


def _little(
    report: Mapping[str, Any], num_requests: int, measured_in_flight: float | None, slack_s: float
) -> list[str]:
    """Mean in flight = arrival rate x mean time in the system, each found in its own way."""
    by_law = report["num_in_flight_mean"]
    if by_law is None or measured_in_flight is None:
        return []
    allowed = _TOLERANCE * by_law + num_requests * slack_s / report["duration_s"]
    if abs(by_law - measured_in_flight) <= allowed:
        return []
    return [f"Little's law: {by_law:.3f} in flight by rate x time, {measured_in_flight:.3f} counted"]


def _faults(record: RequestRecord) -> list[str]:
    if not record.is_ok:
        return []
    faults = []
    times = (record.sent_s, *record.chunk_s, record.end_s)
    if any(later < earlier for earlier, later in pairwise(times)):
        faults.append("its times are not in order")
    if record.num_cached_tokens > record.num_prompt_tokens:
        faults.append(f"{record.num_cached_tokens} cached of {record.num_prompt_tokens} prompt tokens")
    ttft_s, tpot_s, e2e_s = record.ttft_s, record.tpot_s, record.e2e_s
    if ttft_s is not None and tpot_s is not None and e2e_s is not None:
        whole_s = ttft_s + tpot_s * (record.num_output_tokens - 1)
        if not _near(whole_s, e2e_s, 1e-6, slack=1e-9):
            faults.append(f"TTFT + TPOT x (n - 1) = {whole_s:.6f} s, E2E = {e2e_s:.6f} s")
    return faults


def _near(a: float, b: float, relative: float, slack: float = 1e-9) -> bool:
    return math.isclose(a, b, rel_tol=relative, abs_tol=slack)
