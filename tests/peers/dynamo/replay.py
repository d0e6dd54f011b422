"""Runs inside Dynamo's own environment: probes of its step times, then the trace. Prints one JSON object.

python replay.py TRACE SETTINGS
"""

from __future__ import annotations

import json
import os
import sys

os.environ["DYN_LOG"] = "error"  # it logs every decision otherwise

from dynamo.replay import run_synthetic_trace_replay, run_trace_replay

PREFILL = (16, 64, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
DECODE = (16, 256, 1024, 2048, 4096, 8192, 12000, 16000, 20000, 24000)


def summary(report: object) -> dict:
    """A dict or an object with attributes, depending on what was asked for."""
    told = report.get("summary", report) if isinstance(report, dict) else getattr(report, "summary", report)
    if isinstance(told, dict):
        return told
    return {name: getattr(told, name) for name in dir(told) if not name.startswith("_")}


def main() -> None:
    settings = json.loads(sys.argv[2])
    engine = {"engine": {"num_gpu_blocks": settings["num_blocks"], "block_size": settings["block_size"]}}
    probe = {"request_count": 1, "extra_engine_args": engine, "num_workers": 1, "replay_concurrency": 1}
    prefill = [(n, summary(run_synthetic_trace_replay(n, 2, **probe))["mean_ttft_ms"] / 1e3) for n in PREFILL]
    decode = [(n, summary(run_synthetic_trace_replay(n, 3, **probe))["mean_tpot_ms"] / 1e3) for n in DECODE]
    report = run_trace_replay(
        [sys.argv[1]],
        extra_engine_args=engine,
        num_workers=settings["num_workers"],
        router_mode="round_robin",
        trace_block_size=settings["trace_block_size"],
        **({"replay_concurrency": settings["concurrency"]} if settings["concurrency"] else {}),
    )
    told = summary(report)
    names = ("prefix_cache_reused_ratio", "duration_ms", "completed_requests", "median_ttft_ms", "median_tpot_ms")
    print(json.dumps({"prefill": prefill, "decode": decode, "report": {name: told.get(name) for name in names}}))


if __name__ == "__main__":
    main()
