"""`tokenmill bench`: measure. The last line on stdout is one JSON object; with --json it is the only one."""

from __future__ import annotations

from pathlib import Path

import typer

from tokenmill.cli import (
    bench_compare,
    bench_generator,
    bench_kernels,
    bench_pareto,
    bench_peers,
    bench_predict,
    bench_quality,
    bench_router,
    bench_serve,
    bench_speculation,
    bench_twin,
)
from tokenmill.cli.bench_options import JSON, OUTPUT, PRICE, WATTS, engine_settings, fetch, finish
from tokenmill.cli.output import note

#: command families, each in a module of its own
_FAMILIES = (
    bench_serve,
    bench_compare,
    bench_generator,
    bench_kernels,
    bench_pareto,
    bench_peers,
    bench_quality,
    bench_predict,
    bench_router,
    bench_speculation,
    bench_twin,
)


def build_app() -> typer.Typer:
    app = typer.Typer(help="Measure throughput, latency and cost.", no_args_is_help=True)
    app.command()(throughput)
    app.command()(context)
    for module in _FAMILIES:
        module.add_to(app)
    return app


def throughput(
    model: str = typer.Option("smollm2", help="Alias, path or hf:organisation/name."),
    num_prompts: int = typer.Option(32, help="Prompts, all submitted at once."),
    isl: int = typer.Option(256, help="Tokens per prompt."),
    osl: int = typer.Option(64, help="Tokens per answer."),
    concurrency: int | None = typer.Option(None, help="Most sequences in one step; default: all."),
    num_shared: int = typer.Option(0, help="Tokens at the front that all prompts have in common."),
    against: str | None = typer.Option(None, help="Run this system in turn with ours: transformers."),
    repeats: int = typer.Option(2, help="Runs of each system; the median counts."),
    seed: int = typer.Option(0, help="Of the prompts."),
    sets: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Engine setting, e.g. dtype=float32."),
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Offline tokens per second in this process, beside another system in the same run."""
    from tokenmill.bench.throughput import ThroughputBench, run_throughput_bench
    from tokenmill.cli.bench_report import throughput_table

    bench = ThroughputBench(
        model=model,
        num_prompts=num_prompts,
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        num_shared=num_shared,
        repeats=repeats,
        seed=seed,
        against=against,
        price_per_hour=price_per_hour,
        watts=watts,
        engine=engine_settings(sets),
    )
    bench.check()
    fetch(model)
    finish(run_throughput_bench(bench, note), throughput_table, output, as_json=as_json)


def context(
    model: str | None = typer.Option(None, help="A DeepSeek V4 checkpoint; default: a synthetic one, in memory."),
    contexts: str | None = typer.Option(None, help="Tokens, e.g. 4k,64k,256k,1M (the default, as far as they fit)."),
    num_steps: int = typer.Option(7, help="Decode steps at each context; the median counts. At least 5."),
    dtype: str = typer.Option("bfloat16", help="bfloat16 or float32."),
    kv_cache_dtype: str = typer.Option("auto", help="auto, fp32, bf16 or fp8_e4m3."),
    index_cache_dtype: str = typer.Option("auto", help="auto, fp32, bf16, fp8_e4m3 or fp4."),
    seed: int = typer.Option(0, help="Of weights and cache content."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Long contexts of DeepSeek V4: bytes a sequence holds, seconds per token beside this machine's roofline."""
    from tokenmill.bench.context import ContextBench, run_context_bench
    from tokenmill.cli.bench_report import context_table

    bench = ContextBench(
        model=model,
        contexts=tuple(_tokens(text) for text in contexts.split(",")) if contexts else (),
        num_steps=num_steps,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        index_cache_dtype=index_cache_dtype,
        seed=seed,
    )
    bench.check()
    if model is not None:
        fetch(model)
    finish(run_context_bench(bench, note), context_table, output, as_json=as_json)


def _tokens(text: str) -> int:
    """4096, 4k or 1M, in powers of 1024 as context lengths are."""
    from tokenmill.core.errors import ConfigError

    factor = {"k": 2**10, "m": 2**20}.get(text.strip()[-1:].lower(), 1)
    digits = text.strip() if factor == 1 else text.strip()[:-1]
    if not digits.isdecimal():
        raise ConfigError(f"--contexts {text!r} is not a number of tokens: write e.g. 4k,64k,256k,1M or 5000")
    return int(digits) * factor
