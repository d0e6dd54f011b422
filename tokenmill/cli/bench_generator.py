"""`tokenmill bench generator`: the load generator against a null server. Not responsible for: measuring (bench)."""

from __future__ import annotations

from pathlib import Path

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, fail_if_invalid, finish


def add_to(app: typer.Typer) -> None:
    app.command()(generator)


def generator(
    concurrency: int = typer.Option(32, min=1, help="Streams at once."),
    num_prompts: int = typer.Option(128, min=1, help="Requests."),
    osl: int = typer.Option(256, min=2, help="Tokens per answer, each an event of its own."),
    tick_ms: float = typer.Option(5.0, min=0.1, help="Between two tokens of a stream."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """What the load generator itself costs: streamed tokens per second of its CPU time."""
    from tokenmill.bench.generator import run_generator_bench
    from tokenmill.cli.bench_report import generator_table

    result = run_generator_bench(concurrency=concurrency, num_requests=num_prompts, osl=osl, tick_ms=tick_ms)
    finish(result, generator_table, output, as_json=as_json)
    fail_if_invalid(result)
