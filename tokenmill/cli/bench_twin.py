"""`tokenmill bench twin`: how far the twin is from a real server on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, finish, numbers
from tokenmill.cli.output import note, print_table


def add_to(app: typer.Typer) -> None:
    app.command()(twin)


def twin(
    models: str = typer.Option("smollm2,v4-nano", help="Names or paths, with commas; each is served in turn."),
    concurrencies: str = typer.Option("1,2,4,8,16,32", help="The load points."),
    isl: int = typer.Option(96, help="Tokens per prompt."),
    osl: int = typer.Option(48, help="Tokens per answer."),
    per_user: int = typer.Option(3, help="Requests of each user at a point."),
    sets: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Engine setting, e.g. num_threads=1."),
    seed: int = typer.Option(0, help="Of prompts."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """A real server and its twin at several loads: TPOT within 15 %, TTFT within 25 %. Exit code 1 if not."""
    from tokenmill.bench.twin import TwinBench, run_twin_bench
    from tokenmill.cli.bench_options import engine_settings

    bench = TwinBench(
        models=tuple(models.split(",")),
        concurrencies=tuple(numbers(concurrencies, "--concurrencies")),
        isl=isl,
        osl=osl,
        per_user=per_user,
        seed=seed,
        engine=engine_settings(sets),
    )
    result = run_twin_bench(bench, note)
    finish(result, _table, output, as_json=as_json)
    if not result["is_ok"]:
        raise typer.Exit(1)


def _table(result: dict[str, Any]) -> None:
    rows = [
        (
            model,
            point["concurrency"],
            f"{point['real']['tpot_s_p50'] * 1e3:.1f}",
            f"{point['tpot_off']:+.0%}",
            f"{point['real']['ttft_s_p50'] * 1e3:.0f}",
            f"{point['ttft_off']:+.0%}",
        )
        for model, told in result["models"].items()
        for point in told["points"]
    ]
    print_table(("model", "in flight", "TPOT ms", "twin", "TTFT ms", "twin"), rows)
