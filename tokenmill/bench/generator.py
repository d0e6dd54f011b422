"""`bench generator`: what the load generator itself costs, in streamed tokens per second of its CPU time.

Not responsible for: the load (serve); the server is null_server, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tokenmill.bench.aio import run_async
from tokenmill.bench.environment import describe_environment
from tokenmill.bench.load_plan import LoadSettings
from tokenmill.bench.serve import run_serve_bench
from tokenmill.bench.serve_settings import ServeBench
from tokenmill.core.errors import SetupError
from tokenmill.workloads.lengths import Fixed
from tokenmill.workloads.synthetic import synthetic_workload


@contextmanager
def null_server(tick_ms: float) -> Iterator[str]:
    """Its address; it ends with the block, since its stdin does."""
    command = [sys.executable, "-m", "tokenmill.bench.null_server", "--tick-ms", str(tick_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        if "ready: " not in line:
            raise SetupError(f"the null server did not start (exit code {process.wait()}): see its log above")
        try:
            yield line.split("ready: ")[1].strip()
        finally:
            process.stdin.close()
            process.wait(30)


def run_generator_bench(
    *, concurrency: int = 32, num_requests: int = 128, osl: int = 256, tick_ms: float = 5.0, endpoint: str = "chat"
) -> dict[str, Any]:
    """Every token of every stream is an event of its own, `tick_ms` after the one before."""
    workload = synthetic_workload(Fixed(64), Fixed(osl))
    load = LoadSettings(workload=workload, concurrency=concurrency, num_requests=num_requests)
    with null_server(tick_ms) as url:
        bench = ServeBench(url, load, endpoint="chat" if endpoint == "chat" else "completions", num_warmup=concurrency)
        began_s = time.perf_counter()
        result = run_async(run_serve_bench(bench, lambda done, total: None))
    cpu_s = result["client"]["cpu_s"]
    return {
        "bench": "generator",
        "settings": {"concurrency": concurrency, "num_requests": num_requests, "osl": osl, "tick_ms": tick_ms},
        "environment": describe_environment(),
        "seconds": time.perf_counter() - began_s,
        "num_tokens": result["num_output_tokens"],
        "cpu_s": cpu_s,
        "tokens_per_cpu_s": result["num_output_tokens"] / cpu_s,
        "tpot_ms_p50": result["tpot_s_p50"] * 1e3,
        "added_tpot_ms": result["tpot_s_p50"] * 1e3 - tick_ms,
        "problems": result["problems"],
        "is_valid": result["is_valid"],
    }
