"""`tokenmill bench compare` and `history`: the same load in turns. Not responsible for: the turns (bench/compare)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import API_KEY, JSON, OUTPUT, PRICE, WATTS, fail_if_invalid, finish, one_of
from tokenmill.cli.output import note

_ISL = typer.Option("256", help="Tokens per prompt, as in bench serve.")
_OSL = typer.Option("64", help="Tokens per answer.")
_WORKLOAD = typer.Option(None, help="In place of --isl and --osl.")
_SCALE = typer.Option(None, help="Factor on the workload's sizes.")
_CONCURRENCY = typer.Option(8, min=1, help="Sessions in flight.")
_NUM_PROMPTS = typer.Option(64, min=1, help="Requests per round and system.")
_NUM_WARMUP = typer.Option(8, min=0, help="Warm-up requests before each, drained.")
_ROUNDS = typer.Option(3, help="Each loads every system once, in alternating order.")
_SEED = typer.Option(0, help="Of lengths.")


def add_to(app: typer.Typer) -> None:
    app.command()(compare)
    app.command()(history)


def compare(
    url: list[str] = typer.Option([], help="[label=]http://…; give it once per server, the first is the base."),
    recipes: str | None = typer.Option(None, help="Systems to start: SOURCE[@set=value…], by comma."),
    model: str | None = typer.Option(None, help="Its name at every server; default: the first each lists."),
    endpoint: str = typer.Option("completions", help="completions or chat."),
    api_key: str | None = API_KEY,
    workload: str | None = _WORKLOAD,
    scale: str | None = _SCALE,
    isl: str = _ISL,
    osl: str = _OSL,
    concurrency: int = _CONCURRENCY,
    num_prompts: int = _NUM_PROMPTS,
    num_warmup: int = _NUM_WARMUP,
    rounds: int = _ROUNDS,
    ignore_eos: bool = typer.Option(True, help="Ask for the full length."),
    slo: str | None = typer.Option(None, "--slo", help="ttft=500ms,tpot=50ms; default 3 x unloaded, of each."),
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    seed: int = _SEED,
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """The same load on several servers in turns: ratios with their spread."""
    from tokenmill.bench.compare import run_compare_bench
    from tokenmill.bench.systems import parse_systems
    from tokenmill.cli.bench_report import compare_table

    cell = _cell(
        models=(model,) if model else (),
        endpoint=one_of("--endpoint", endpoint, ("completions", "chat")),
        api_key=api_key,
        ignore_eos=ignore_eos,
        slo=slo,
        usd_per_hour=price_per_hour,
        watts=watts,
        num_warmup=num_warmup,
    )
    systems = parse_systems([*url, *(recipes.split(",") if recipes else [])])
    bench = _bench(systems, cell, rounds, workload, scale, isl, osl, concurrency, num_prompts, seed)
    result = run_compare_bench(bench, note)
    finish(result, compare_table, output, as_json=as_json)
    fail_if_invalid(result)


def history(
    refs: str = typer.Option("HEAD~1,HEAD", help="Tags or commits by comma, oldest first; the last is the base."),
    model: str = typer.Option("smollm2", help="What each release serves."),
    sets: list[str] = typer.Option([], "--set", metavar="PATH=VALUE", help="Setting for every release."),
    workload: str | None = _WORKLOAD,
    scale: str | None = _SCALE,
    isl: str = _ISL,
    osl: str = _OSL,
    concurrency: int = _CONCURRENCY,
    num_prompts: int = _NUM_PROMPTS,
    num_warmup: int = _NUM_WARMUP,
    rounds: int = _ROUNDS,
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    seed: int = _SEED,
    output: Path = typer.Option(Path("history"), "--output", "-o", help="Base name of the .html and .json."),
    as_json: bool = JSON,
) -> None:
    """Earlier commits beside the present one, in turns: dollars per million tokens, release by release."""
    from tokenmill.bench.history import history_page, run_history_bench
    from tokenmill.cli.bench_report import compare_table

    cell = _cell(usd_per_hour=price_per_hour, watts=watts, num_warmup=num_warmup)
    bench = _bench([], cell, rounds, workload, scale, isl, osl, concurrency, num_prompts, seed)
    arguments = [model, *(part for text in sets for part in ("--set", text))]
    result = run_history_bench(bench, refs.split(","), arguments, note)
    output.with_suffix(".html").write_text(history_page(result), encoding="utf-8")
    finish(result, compare_table, output.with_suffix(".json"), as_json=as_json)
    fail_if_invalid(result)


def _cell(*, slo: str | None = None, **settings: Any) -> Any:
    from tokenmill.bench.serve_settings import ServeBench
    from tokenmill.core.slo import SLO

    return partial(ServeBench, slo=SLO.parse(slo) if slo else None, **settings)


def _bench(
    systems: Any,
    cell: Any,
    rounds: int,
    workload: str | None,
    scale: str | None,
    isl: str,
    osl: str,
    concurrency: int,
    num_prompts: int,
    seed: int,
) -> Any:
    from tokenmill.bench.compare import CompareBench
    from tokenmill.bench.load_plan import LoadSettings
    from tokenmill.cli.bench_serve import chosen_workload

    load = LoadSettings(
        workload=chosen_workload(workload, scale, None, isl, osl, 0),
        concurrency=concurrency,
        num_requests=num_prompts,
        seed=seed,
    )
    return CompareBench(systems, load, cell, rounds)
