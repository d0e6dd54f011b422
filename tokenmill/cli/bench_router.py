"""`tokenmill bench router`: what routing itself costs. Not responsible for: measuring (bench)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, finish
from tokenmill.cli.output import print_table


def add_to(app: typer.Typer) -> None:
    app.command()(router)


def router(
    num_workers: int = typer.Option(1000, min=1, help="Workers to choose from."),
    num_blocks: int = typer.Option(1_000_000, min=1, help="Distinct blocks in the prefix index."),
    prompt_blocks: int = typer.Option(1000, min=1, help="Blocks of a prompt; their hashes are given."),
    num_queries: int = typer.Option(400, min=2, help="Decisions; the median counts."),
    policy: str = typer.Option("cost_aware", help="Router policy."),
    seed: int = typer.Option(0, help="Of what workers hold and are asked."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """CPU time of a routing decision and of taking in cache events; bytes per indexed block."""
    from tokenmill.bench.router import RouterBench, run_router_bench

    bench = RouterBench(num_workers, num_blocks, prompt_blocks, num_queries, policy, seed)
    finish(run_router_bench(bench), _show, output, as_json=as_json)


def _show(result: dict[str, Any]) -> None:
    rows = [
        ("decision, median of CPU time", f"{result['decision_us_p50']:.0f} us"),
        ("decision, 90th percentile", f"{result['decision_us_p90']:.0f} us"),
        ("of it, looking the prompt up", f"{result['lookup_us_p50']:.0f} us"),
        ("events taken in, blocks per CPU second", f"{result['events_blocks_per_cpu_s']:,.0f}"),
        ("indexed blocks", f"{result['num_indexed_blocks']:,}"),
        ("memory per indexed block", f"{result['bytes_per_block']:.0f} bytes"),
    ]
    print_table(("what", "measured"), rows)
