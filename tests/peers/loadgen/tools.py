"""One run of each load generator, as figures in the same units. Not responsible for: turns, agreement (run.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_LIMIT_S = 1800


@dataclass(frozen=True)
class Load:
    """The same for every tool; `seed` is another one in every run, so that no prompt comes twice."""

    url: str
    model: str
    tokenizer: Path
    isl: int
    osl: int
    concurrency: int
    num_requests: int
    num_warmup: int
    seed: int


@dataclass(frozen=True)
class Figures:
    num_ok: int
    num_failed: int
    isl_mean: float
    osl_mean: float
    output_tput_per_s: float
    ttft_s_p50: float
    tpot_s_p50: float
    version: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_tokenmill(load: Load, folder: Path, venv: Path | None) -> Figures:
    output = folder / "tokenmill.json"
    command = [sys.executable, "-m", "tokenmill.cli.main", "bench", "serve", "--url", load.url, "--model", load.model]
    command += ["--isl", str(load.isl), "--osl", str(load.osl), "--concurrency", str(load.concurrency)]
    command += ["--num-prompts", str(load.num_requests), "--num-warmup", str(load.num_warmup), "--num-unloaded", "1"]
    _call([*command, "--seed", str(load.seed), "--json", "--output", str(output)], folder)
    told = json.loads(output.read_text())
    names = ("num_ok", "num_failed", "isl_mean", "osl_mean", "output_tput_per_s", "ttft_s_p50", "tpot_s_p50")
    return Figures(**{name: told[name] for name in names}, version=told["environment"]["commit"] or "")


def run_aiperf(load: Load, folder: Path, venv: Path | None) -> Figures:
    assert venv is not None
    artifacts = folder / "aiperf"
    command = [str(venv / "bin" / "aiperf"), "profile", "--model", load.model, "--tokenizer", str(load.tokenizer)]
    command += ["--url", load.url, "--endpoint-type", "completions", "--streaming", "--ui", "none"]
    command += ["--concurrency", str(load.concurrency), "--request-count", str(load.num_requests)]
    command += ["--warmup-request-count", str(max(1, load.num_warmup)), "--isl", str(load.isl), "--isl-stddev", "0"]
    command += ["--osl", str(load.osl), "--osl-stddev", "0", "--extra-inputs", "ignore_eos:true"]
    command += ["--use-server-token-count", "--no-gpu-telemetry", "--random-seed", str(load.seed)]
    _call([*command, "--artifact-dir", str(artifacts)], folder, _path(venv))
    told = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    num_ok = int(told["request_count"]["avg"])
    return Figures(
        num_ok=num_ok,
        num_failed=load.num_requests - num_ok,
        isl_mean=told["usage_prompt_tokens"]["avg"],
        osl_mean=told["usage_completion_tokens"]["avg"],
        output_tput_per_s=told["output_token_throughput"]["avg"],
        ttft_s_p50=told["time_to_first_token"]["p50"] / 1e3,
        tpot_s_p50=told["inter_token_latency"]["p50"] / 1e3,  # a request's mean gap, as AIPerf defines it
        version=told["aiperf_version"],
    )


def run_guidellm(load: Load, folder: Path, venv: Path | None) -> Figures:
    """GuideLLM has no warm-up of its own load: it gets one by a run before."""
    assert venv is not None
    if load.num_warmup:
        _guidellm(load, load.num_warmup, load.seed + 500_000, folder / "guidellm-warmup.json", venv)
    told = _guidellm(load, load.num_requests, load.seed, folder / "guidellm.json", venv)
    metrics = told["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    return Figures(
        num_ok=totals["successful"],
        num_failed=totals["errored"] + totals["incomplete"],
        isl_mean=metrics["prompt_token_count"]["successful"]["mean"],
        osl_mean=metrics["output_token_count"]["successful"]["mean"],
        output_tput_per_s=metrics["output_tokens_per_second"]["successful"]["mean"],
        ttft_s_p50=metrics["time_to_first_token_ms"]["successful"]["median"] / 1e3,
        tpot_s_p50=metrics["inter_token_latency_ms"]["successful"]["median"] / 1e3,  # without the first token
        version=str(told["metadata"].get("guidellm_version", "")),
    )


def _guidellm(load: Load, num_requests: int, seed: int, output: Path, venv: Path) -> dict[str, Any]:
    command = [str(venv / "bin" / "guidellm"), "run", "--disable-progress", "--seed", f"kind=static,value={seed}"]
    backend = f"kind=openai_http,target={load.url},model={load.model},request_format=/v1/completions"
    command += ["--backend", backend, "--tokenizer", f"kind=hf_auto,model={load.tokenizer}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={load.isl},output_tokens={load.osl}"]
    command += ["--profile", f"kind=concurrent,streams={load.concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={num_requests}", "--output", f"kind=json,path={output}"]
    _call(command, output.parent, _path(venv) | {"HF_HUB_OFFLINE": "1"})
    return json.loads(output.read_text())


def _path(venv: Path) -> dict[str, str]:
    return {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def _call(command: list[str], folder: Path, env: Mapping[str, str] = {}) -> None:
    """Its log goes to a file, and to the message when it fails."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("w") as out:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **env}, stdout=out, stderr=subprocess.STDOUT, timeout=_LIMIT_S
        )
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {log.read_text()[-2000:]}")


#: name -> (pinned package or None, how to run it)
TOOLS: dict[str, tuple[str | None, Callable[[Load, Path, Path | None], Figures]]] = {
    "tokenmill": (None, run_tokenmill),
    "aiperf": ("aiperf==0.13.0", run_aiperf),
    "guidellm": ("guidellm==0.8.1", run_guidellm),
}
