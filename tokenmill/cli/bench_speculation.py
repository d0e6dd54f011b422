"""`tokenmill bench speculation`: speculative decoding by method and concurrency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, PRICE, WATTS, finish, numbers
from tokenmill.cli.output import note, print_table


def add_to(app: typer.Typer) -> None:
    app.command()(speculation)


def speculation(
    model: str = typer.Option("smollm2", help="Alias, path or hf:organisation/name."),
    methods: str = typer.Option("off,ngram,mtp,dflash,auto", help="Those that the model lacks are left out."),
    configs: list[str] = typer.Option(
        [], "--config", metavar="METHOD=JSON", help='E.g. dflash={"method": "dflash", "model": "PATH"}.'
    ),
    concurrency: str = typer.Option("1,4,16", help="Users at once."),
    prompts: str = typer.Option("domains", help="domains or code-edit."),
    isl: int = typer.Option(300, help="Tokens of the file in a code-edit prompt."),
    osl: int = typer.Option(128, help="Tokens per answer."),
    temperature: float = typer.Option(0.0, help="Of all requests."),
    repeats: int = typer.Option(7, help="Runs of each method, in turn; the median counts."),
    sets: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Engine setting, e.g. dtype=float32."),
    price_per_hour: float | None = PRICE,
    watts: float | None = WATTS,
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Tokens per second per user and dollars per million tokens with and without drafting."""
    from tokenmill.bench.speculation import SpeculationBench, run_speculation_bench
    from tokenmill.cli.bench_options import engine_settings, fetch

    bench = SpeculationBench(
        model=model,
        methods=tuple(name.strip() for name in methods.split(",")),
        configs=dict(_config(text) for text in configs),
        concurrency=tuple(numbers(concurrency, "--concurrency")),
        prompts=prompts,
        isl=isl,
        osl=osl,
        temperature=temperature,
        repeats=repeats,
        price_per_hour=price_per_hour,
        watts=watts,
        engine=engine_settings(sets),
    )
    bench.check()
    fetch(model)
    finish(run_speculation_bench(bench, note), speculation_table, output, as_json=as_json)


def _config(text: str) -> tuple[str, Any]:
    from tokenmill.core.errors import ConfigError
    from tokenmill.recipes.settings import parse_text

    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f'--config {text!r} is not METHOD=JSON: write e.g. ngram={{"method": "ngram"}}')
    return name, parse_text("engine.speculative_config", value)


def speculation_table(result: dict[str, Any]) -> None:
    names = ("users", "method", "tok/s/user", "x off", "$/Mtok output", "tokens/step", "drafted/token", "same text")
    rows = [
        (
            str(row["concurrency"]),
            row["method"],
            f"{row['tok_s_per_user']:.1f}",
            f"{row['speedup']:.2f}",
            f"{row['usd_per_mtok_output']:.3f}",
            "-" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}",
            f"{row['drafted_per_token']:.2f}",
            "yes" if row["is_same_text"] else "no",
        )
        for row in result["results"]
    ]
    print_table(names, rows)
    for name, why in result["refused"].items():
        print(f"{name} left out: {why}")
