"""`tokenmill bench pareto` and `inferencex`: sweeps of concurrency. Not responsible for: the sweep (bench/pareto)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import API_KEY, JSON, PRICE, WATTS, fail_if_invalid, numbers, one_of
from tokenmill.cli.output import note, print_json

_RECIPES = typer.Option(None, help="SOURCE[@set=value…] or http://…, by comma; label=… in front names a curve.")
_BASE = typer.Option(Path("pareto"), "--output", "-o", help="Base name of the .html, .csv and .json.")
_OVERLAY = typer.Option([], "--overlay", help="JSON of an earlier sweep, drawn with this one; may repeat.")
_PUBLISHED = typer.Option([], help="Published points to draw: a model, hardware or curve name, or all; may repeat.")


def add_to(app: typer.Typer) -> None:
    app.command()(pareto)
    app.command("pareto-page")(page)
    app.command()(inferencex)


def pareto(
    model: str = typer.Option("smollm2", help="Started with `tokenmill serve` when no --recipes are given."),
    recipes: str | None = _RECIPES,
    isl: str = typer.Option("256", help="Tokens per prompt, as in bench serve."),
    osl: str = typer.Option("64", help="Tokens per answer."),
    workload: str | None = typer.Option(None, help="In place of --isl and --osl."),
    scale: str | None = typer.Option(None, help="Factor on the workload's sizes."),
    concurrency: str = typer.Option("1..8", help="1,4,16 or 1..64 (powers of two)."),
    num_per_user: int = typer.Option(10, min=1, help="Requests per cell = this x concurrency."),
    num_warmup_per_user: int = typer.Option(2, min=0, help="Warm-up requests per cell = this x concurrency."),
    ttft_bound: str | None = typer.Option(None, help="Median TTFT above it keeps a point off the frontier: 500ms."),
    slo: str | None = typer.Option(None, help="For goodput in the cells: ttft=500ms,tpot=50ms."),
    endpoint: str = typer.Option("completions", help="completions or chat."),
    ignore_eos: bool = typer.Option(True, help="Ask for the full length."),
    api_key: str | None = API_KEY,
    num_devices: int = typer.Option(1, min=1, help="Devices of each system, all paid for."),
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    seed: int = typer.Option(0, help="Of lengths."),
    output: Path = _BASE,
    overlay: list[Path] = _OVERLAY,
    published: list[str] = _PUBLISHED,
    as_json: bool = JSON,
) -> None:
    """Tokens/s per device against tokens/s per user, $/M and J/token, as a page, CSV and JSON."""
    from tokenmill.bench.pareto import ParetoBench, run_pareto_bench
    from tokenmill.bench.serve_settings import ServeBench
    from tokenmill.bench.systems import parse_systems
    from tokenmill.cli.bench_serve import chosen_workload
    from tokenmill.core.slo import SLO
    from tokenmill.core.units import parse_seconds

    cell = partial(
        ServeBench,
        endpoint=one_of("--endpoint", endpoint, ("completions", "chat")),
        api_key=api_key,
        ignore_eos=ignore_eos,
        slo=SLO.parse(slo) if slo else None,
        usd_per_hour=price_per_hour,
        watts=watts,
        num_devices=num_devices,
    )
    bench = ParetoBench(
        systems=parse_systems(recipes.split(",") if recipes else [model]),
        workload=chosen_workload(workload, scale, None, isl, osl, 0),
        concurrencies=numbers(concurrency, "--concurrency"),
        cell=cell,
        num_per_user=num_per_user,
        num_warmup_per_user=num_warmup_per_user,
        ttft_bound_s=parse_seconds(ttft_bound) if ttft_bound else None,
        seed=seed,
    )
    check_overlays(overlay, published)
    end(run_pareto_bench(bench, note), output, overlay, published, as_json=as_json)


def inferencex(
    scenario: str = typer.Option("8k1k", help="8k1k, 1k1k or agentic."),
    model: str = typer.Option("smollm2", help="Started with `tokenmill serve` when no --recipes are given."),
    recipes: str | None = _RECIPES,
    concurrency: str = typer.Option("1..8", help="1,4,16 or 1..64 (powers of two); session trees when agentic."),
    scale: float = typer.Option(1.0, min=1e-4, max=1.0, help="Factor on the nominal lengths; told in the result."),
    floor: float = typer.Option(0.85, min=0.0, max=1.0, help="Of the accuracy gate; 0 leaves it out."),
    accept_length: float | None = typer.Option(None, min=1.0, help="Forced acceptance length of speculation."),
    duration: str = typer.Option("900s", help="Of the agentic scenario."),
    ttft_bound: str | None = typer.Option(None, help="Median TTFT above it keeps a point off the frontier: 500ms."),
    endpoint: str = typer.Option("completions", help="completions or chat."),
    api_key: str | None = API_KEY,
    num_devices: int = typer.Option(1, min=1, help="Devices of each system, all paid for."),
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    seed: int = typer.Option(0, help="Of lengths."),
    output: Path = _BASE,
    overlay: list[Path] = _OVERLAY,
    published: list[str] = _PUBLISHED,
    as_json: bool = JSON,
) -> None:
    """The published method: lengths 80-100 % of nominal, 10 x concurrency prompts, 2 x warm-ups, accuracy gate."""
    from tokenmill.bench.inferencex import InferenceXBench, run_inferencex_bench
    from tokenmill.bench.serve_settings import ServeBench
    from tokenmill.bench.systems import forcing_acceptance, parse_systems
    from tokenmill.core.units import parse_seconds

    cell = partial(
        ServeBench,
        endpoint=one_of("--endpoint", endpoint, ("completions", "chat")),
        api_key=api_key,
        usd_per_hour=price_per_hour,
        watts=watts,
        num_devices=num_devices,
    )
    systems = parse_systems(recipes.split(",") if recipes else [model])
    bench = InferenceXBench(
        scenario=scenario,
        systems=systems if accept_length is None else forcing_acceptance(systems, accept_length),
        concurrencies=numbers(concurrency, "--concurrency"),
        cell=cell,
        scale=scale,
        floor=floor,
        duration_s=parse_seconds(duration),
        ttft_bound_s=parse_seconds(ttft_bound) if ttft_bound else None,
        seed=seed,
    )
    bench.workload()  # an unknown scenario fails now
    check_overlays(overlay, published)
    end(run_inferencex_bench(bench, note), output, overlay, published, as_json=as_json)


def page(
    results: list[Path] = typer.Argument(help="JSON files that bench pareto, bench serve or simulate wrote."),
    output: Path = _BASE,
    published: list[str] = _PUBLISHED,
    ttft_bound: str | None = typer.Option(None, help="Median TTFT above it keeps a point off the frontier: 500ms."),
) -> None:
    """One page and CSV of several sweeps, without measuring."""
    from tokenmill.bench.pareto_files import gather
    from tokenmill.core.units import parse_seconds
    from tokenmill.workloads.curve_page import curve_page
    from tokenmill.workloads.curves import to_csv

    points = gather([], results, published)
    bound_s = parse_seconds(ttft_bound) if ttft_bound else None
    about = {"files": [str(path) for path in results], "published": published}
    text = curve_page(points, title="Tokens per device against tokens per user", about=about, ttft_bound_s=bound_s)
    output.with_suffix(".html").write_text(text, encoding="utf-8")
    output.with_suffix(".csv").write_text(to_csv(points), encoding="utf-8")
    print_json({"bench": "pareto-page", "num_points": len(points), "html": str(output.with_suffix(".html"))})


def check_overlays(overlay: list[Path], published: list[str]) -> None:
    """Before hours are spent."""
    from tokenmill.bench.pareto_files import gather

    gather([], overlay, published)


def end(result: dict[str, Any], output: Path, overlay: list[Path], published: list[str], *, as_json: bool) -> None:
    from tokenmill.bench.pareto_files import write_pareto_files
    from tokenmill.cli.bench_report import pareto_table

    result["files"] = write_pareto_files(result, output, overlays=overlay, published=published)
    if not as_json:
        pareto_table(result)
    print_json(result)
    fail_if_invalid(result)
