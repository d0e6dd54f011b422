"""`tokenmill bench`: measure. The last line on stdout is one JSON object; with --json it is the only one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.output import count_progress, note, print_json

_JSON = typer.Option(False, "--json", help="Print nothing but the JSON object.")
_OUTPUT = typer.Option(None, "--output", "-o", help="Write the JSON object to this file, too.")
_PRICE = typer.Option(None, "--price-per-hour", help="Dollars per hour of the measured machine.")
_WATTS = typer.Option(None, "--watts", help="Power draw of the measured machine.")


def build_app() -> typer.Typer:
    app = typer.Typer(help="Measure throughput, latency and cost.", no_args_is_help=True)
    app.command()(throughput)
    app.command()(serve)
    app.command()(context)
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
    price_per_hour: float | None = _PRICE,
    watts: float | None = _WATTS,
    output: Path | None = _OUTPUT,
    as_json: bool = _JSON,
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
        engine=_engine_settings(sets),
    )
    bench.check()
    _fetch(model)
    _finish(run_throughput_bench(bench, note), throughput_table, output, as_json=as_json)


def serve(
    url: str = typer.Option("http://127.0.0.1:8000", help="Any OpenAI-compatible server."),
    model: str | None = typer.Option(None, help="Its name there; default: the first it lists."),
    endpoint: str = typer.Option("completions", help="completions or chat."),
    api_key: str | None = typer.Option(None, help="Bearer key.", envvar="TOKENMILL_API_KEY"),
    num_prompts: int = typer.Option(64, help="Requests to measure."),
    isl: int = typer.Option(256, help="Tokens per prompt."),
    osl: int = typer.Option(64, help="Tokens per answer."),
    concurrency: int | None = typer.Option(None, "--concurrency", "--max-concurrency", help="Requests in flight."),
    request_rate: float | None = typer.Option(None, help="Requests per second, whatever comes back."),
    burstiness: float = typer.Option(1.0, help="Of the arrivals: 1 is Poisson, inf is even."),
    num_shared: int = typer.Option(0, help="Tokens at the front that all prompts have in common."),
    prompts: str = typer.Option("text", help="text, or ids (exact; needs --vocab-size)."),
    vocab_size: int | None = typer.Option(None, help="Of the model, for --prompts ids."),
    num_unloaded: int = typer.Option(3, help="Single requests first: warm-up, and base of the automatic SLO."),
    ignore_eos: bool = typer.Option(True, help="Ask for the full length (an extension; some servers refuse it)."),
    slo: str | None = typer.Option(None, "--slo", "--goodput", help="ttft=500ms,tpot=50ms; default 3 x unloaded."),
    seed: int = typer.Option(0, help="Of prompts and arrivals."),
    num_devices: int = typer.Option(1, help="Devices of the server, all paid for."),
    price_per_hour: float | None = _PRICE,
    watts: float | None = _WATTS,
    output: Path | None = _OUTPUT,
    as_json: bool = _JSON,
) -> None:
    """Load an OpenAI server over HTTP: TTFT, TPOT, ITL, throughput, goodput, dollars."""
    from tokenmill.bench.http_client import run_async
    from tokenmill.bench.serve import ServeBench, run_serve_bench
    from tokenmill.cli.bench_report import serve_table
    from tokenmill.core.slo import SLO

    bench = ServeBench(
        url=url,
        model=model,
        endpoint=_one_of("--endpoint", endpoint, ("completions", "chat")),
        api_key=api_key,
        ignore_eos=ignore_eos,
        num_prompts=num_prompts,
        isl=isl,
        osl=osl,
        concurrency=16 if concurrency is None and request_rate is None else concurrency,
        request_rate=request_rate,
        burstiness=burstiness,
        num_shared=num_shared,
        prompts=_one_of("--prompts", prompts, ("text", "ids")),
        vocab_size=vocab_size,
        num_unloaded=num_unloaded,
        seed=seed,
        slo=SLO.parse(slo) if slo else None,
        usd_per_hour=price_per_hour,
        watts=watts,
        num_devices=num_devices,
    )
    with count_progress("requests") as progress:
        result = run_async(run_serve_bench(bench, progress))
    _finish(result, serve_table, output, as_json=as_json)


def context(
    model: str | None = typer.Option(None, help="A DeepSeek V4 checkpoint; default: a synthetic one, in memory."),
    contexts: str | None = typer.Option(None, help="Tokens, e.g. 4k,64k,256k,1M (the default, as far as they fit)."),
    num_steps: int = typer.Option(7, help="Decode steps at each context; the median counts. At least 5."),
    dtype: str = typer.Option("bfloat16", help="bfloat16 or float32."),
    kv_cache_dtype: str = typer.Option("auto", help="auto, fp32, bf16 or fp8_e4m3."),
    index_cache_dtype: str = typer.Option("auto", help="auto, fp32, bf16, fp8_e4m3 or fp4."),
    seed: int = typer.Option(0, help="Of weights and cache content."),
    output: Path | None = _OUTPUT,
    as_json: bool = _JSON,
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
        _fetch(model)
    _finish(run_context_bench(bench, note), context_table, output, as_json=as_json)


def _tokens(text: str) -> int:
    """4096, 4k or 1M, in powers of 1024 as context lengths are."""
    from tokenmill.core.errors import ConfigError

    factor = {"k": 2**10, "m": 2**20}.get(text.strip()[-1:].lower(), 1)
    digits = text.strip() if factor == 1 else text.strip()[:-1]
    if not digits.isdecimal():
        raise ConfigError(f"--contexts {text!r} is not a number of tokens: write e.g. 4k,64k,256k,1M or 5000")
    return int(digits) * factor


def _one_of(option: str, value: str, possible: tuple[str, ...]) -> Any:
    from tokenmill.core.errors import ConfigError

    if value not in possible:
        raise ConfigError(f"{option} {value!r} is not possible: choose {' or '.join(possible)}")
    return value


def _engine_settings(sets: list[str]) -> dict[str, Any]:
    """`name=value` of EngineConfig, with the units that serve understands."""
    from tokenmill.core.errors import ConfigError
    from tokenmill.recipes.settings import parse_text

    settings: dict[str, Any] = {}
    for text in sets:
        name, separator, value = text.removeprefix("engine.").partition("=")
        if not separator:
            raise ConfigError(f"--set {text!r} is not name=value: write e.g. --set dtype=float32")
        settings[name] = parse_text(f"engine.{name}", value)
    return settings


def _fetch(model: str) -> None:
    from tokenmill.cli.output import download_progress
    from tokenmill.models.store import resolve_model

    with download_progress() as progress:
        resolve_model(model, progress)


def _finish(result: dict[str, Any], table: Any, output: Path | None, *, as_json: bool) -> None:
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if not as_json:
        table(result)
    print_json(result)
