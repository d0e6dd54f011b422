"""`tokenmill bench serve`: a load on any OpenAI-compatible server. Not responsible for: the load (bench/)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import API_KEY, JSON, OUTPUT, PRICE, WATTS, fail_if_invalid, finish, one_of
from tokenmill.cli.output import count_progress


def add_to(app: typer.Typer) -> None:
    app.command()(serve)
    app.command("workloads")(list_workloads)


def serve(
    url: str = typer.Option("http://127.0.0.1:8000", help="Any OpenAI-compatible server."),
    model: str | None = typer.Option(None, help="Its name there, by role a,b; default: the first it lists."),
    endpoint: str = typer.Option("completions", help="completions or chat."),
    api_key: str | None = API_KEY,
    workload: str | None = typer.Option(None, help="Built-in name (see bench workloads) or YAML file."),
    scale: str | None = typer.Option(None, help="Factor on the workload's sizes, or fit: to --max-model-len."),
    max_model_len: int | None = typer.Option(None, help="For --scale fit."),
    trace: Path | None = typer.Option(None, help="Replay this JSONL trace (Mooncake, AIPerf multi-turn, our own)."),
    speed: float = typer.Option(1.0, help="Of a trace: 2 takes half the time."),
    as_schedule: bool = typer.Option(False, help="Of a trace: every line at its time, sessions or not."),
    num_prompts: int | None = typer.Option(None, help="Requests to measure; default 64, of a trace all."),
    duration: str | None = typer.Option(None, help="Start nothing later, e.g. 60s."),
    isl: str = typer.Option("256", help="Tokens per prompt: 256, uniform:200:300, lognormal:200:0.5[:MAX]."),
    osl: str = typer.Option("64", help="Tokens per answer, as --isl."),
    num_shared: int = typer.Option(0, help="Tokens at the front that all prompts have in common."),
    concurrency: int | None = typer.Option(None, "--concurrency", "--max-concurrency", help="Sessions in flight."),
    request_rate: str | None = typer.Option(None, help="Sessions per second, whatever comes back; 1,8: a ramp."),
    burstiness: float = typer.Option(1.0, help="Of the arrivals: 1 is Poisson, below is burstier, inf is even."),
    ramp: str = typer.Option("0s", help="A closed loop's sessions start spread over this time."),
    prompts: str = typer.Option("text", help="text, or ids (exact; needs --vocab-size)."),
    vocab_size: int | None = typer.Option(None, help="Of the model, for --prompts ids."),
    num_unloaded: int = typer.Option(3, help="Single requests first: base of the automatic SLO."),
    num_warmup: int = typer.Option(0, help="Requests of the same load before the measurement, drained."),
    ignore_eos: bool = typer.Option(True, help="Ask for the full length (an extension; some servers refuse it)."),
    slo: str | None = typer.Option(None, "--slo", "--goodput", help="ttft=500ms,tpot=50ms; default 3 x unloaded."),
    seed: int = typer.Option(0, help="Of lengths and arrivals."),
    run_id: str | None = typer.Option(None, help="Of the tokens; default: new ones, that no cache has seen."),
    num_devices: int = typer.Option(1, help="Devices of the server, all paid for."),
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Load an OpenAI server over HTTP: TTFT, TPOT, ITL, throughput, goodput, dollars."""
    from tokenmill.bench.aio import run_async
    from tokenmill.bench.load_plan import LoadSettings
    from tokenmill.bench.run_files import default_folder
    from tokenmill.bench.serve import run_serve_bench
    from tokenmill.bench.serve_settings import ServeBench
    from tokenmill.cli.bench_report import serve_table
    from tokenmill.core.slo import SLO
    from tokenmill.core.units import parse_seconds

    chosen = None if trace else chosen_workload(workload, scale, max_model_len, isl, osl, num_shared)
    rates = _rates(request_rate)
    if trace is None and concurrency is None and not rates and chosen is not None:
        concurrency = chosen.load.concurrency
        rates = (chosen.load.rate_per_s,) if chosen.load.rate_per_s else ()
    load = LoadSettings(
        workload=chosen,
        trace=trace,
        concurrency=concurrency,
        rates_per_s=rates,
        burstiness=burstiness,
        ramp_s=parse_seconds(ramp),
        num_requests=64 if num_prompts is None and duration is None and trace is None else num_prompts,
        duration_s=parse_seconds(duration) if duration else None,
        speed=speed,
        as_schedule=as_schedule,
        seed=seed,
    )
    folder = output.with_suffix(".run") if output else default_folder()
    bench = ServeBench(
        url=url,
        load=load,
        models=tuple(model.split(",")) if model else (),
        endpoint=one_of("--endpoint", endpoint, ("completions", "chat")),
        api_key=api_key,
        ignore_eos=ignore_eos,
        prompts=one_of("--prompts", prompts, ("text", "ids")),
        vocab_size=vocab_size,
        num_unloaded=num_unloaded,
        num_warmup=num_warmup,
        slo=SLO.parse(slo) if slo else None,
        usd_per_hour=price_per_hour,
        watts=watts,
        num_devices=num_devices,
        folder=folder,
        run_id=run_id,
    )
    with count_progress("requests") as progress:
        result = run_async(run_serve_bench(bench, progress))
    finish(result, serve_table, output, as_json=as_json)
    fail_if_invalid(result)


def list_workloads(as_json: bool = JSON) -> None:
    """The built-in workloads: shape, sizes, hash."""
    from tokenmill.cli.bench_report import workloads_table
    from tokenmill.workloads.library import load_workload, workload_names
    from tokenmill.workloads.sizes import describe

    rows = []
    for name in workload_names():
        workload = load_workload(name)
        facts = describe(workload, 2 if workload.num_models > 1 else 32)
        rows.append(
            {
                "name": name,
                "version": workload.version,
                "digest": workload.digest,
                "kv_pool_share": workload.kv_pool_share,
                "slo": str(workload.slo) if workload.slo else None,
                "scales": list(workload.scales),
                "description": workload.description,
                **facts,
            }
        )
    finish({"workloads": rows}, workloads_table, None, as_json=as_json)


def _rates(text: str | None) -> tuple[float, ...]:
    from tokenmill.core.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"--request-rate {text!r} is not a rate: write 4, or 1,8 for a ramp from 1 to 8") from None


def chosen_workload(
    name: str | None, scale: str | None, max_model_len: int | None, isl: str, osl: str, num_shared: int
) -> Any:
    from tokenmill.core.errors import ConfigError
    from tokenmill.workloads.library import load_workload
    from tokenmill.workloads.sizes import scale_to_fit
    from tokenmill.workloads.synthetic import parse_lengths_text, synthetic_workload

    if name is None:
        lengths = parse_lengths_text(isl, "--isl"), parse_lengths_text(osl, "--osl")
        return synthetic_workload(*lengths, num_shared=num_shared)
    workload = load_workload(name)
    if scale is None:
        return workload
    if scale == "fit":
        if max_model_len is None:
            raise ConfigError("--scale fit needs --max-model-len: the longest context that the server takes")
        return workload.scaled(scale_to_fit(workload, max_model_len))
    try:
        factor = float(scale)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise ConfigError(f"--scale {scale!r} is not a factor: write a number above 0, or fit")
    return workload.scaled(factor)
