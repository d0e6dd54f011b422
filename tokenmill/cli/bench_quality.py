"""`tokenmill bench quality`: perplexity, acceptance of drafts, tool calls, copying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, finish, numbers
from tokenmill.cli.output import note, print_table


def add_to(app: typer.Typer) -> None:
    app.command()(quality)


def quality(
    model: str = typer.Option("v4-nano", help="Alias, path or hf:organisation/name."),
    num_drafts: str = typer.Option("1,2,3", help="MTP drafts per step, e.g. 1,2,3; none leaves acceptance out."),
    distances: str = typer.Option("256,1024,4096", help="Of copying, in tokens."),
    osl: int = typer.Option(96, help="Tokens that continue each prompt."),
    num_tool_calls: int = typer.Option(120, help="Requests that need a call."),
    sets: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Engine setting, e.g. quantization=int8."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """How good the answers are: perplexity per domain, MTP acceptance, tool calls, copying over a distance."""
    from tokenmill.bench.quality import QualityBench, run_quality_bench
    from tokenmill.cli.bench_options import engine_settings

    bench = QualityBench(
        model=model,
        engine=engine_settings(sets),
        num_drafts=() if num_drafts == "none" else tuple(numbers(num_drafts, "--num-drafts")),
        distances=tuple(numbers(distances, "--distances")),
        osl=osl,
        num_tool_calls=num_tool_calls,
    )
    bench.check()
    finish(run_quality_bench(bench, note), quality_table, output, as_json=as_json)


def quality_table(result: dict[str, Any]) -> None:
    acceptance = result["mtp_acceptance_length"]
    names = ("domain", "nats/token", "perplexity", *(f"tokens per step, k = {k}" for k in acceptance))
    rows = [
        (
            domain + (" (hard)" if domain == result["hard_domain"] else ""),
            f"{result['nats_per_token'][domain]:.3f}",
            f"{perplexity:.2f}",
            *(f"{lengths[domain]:.2f}" for lengths in acceptance.values()),
        )
        for domain, perplexity in result["perplexity"].items()
    ]
    print_table(names, rows)
    for k, lengths in acceptance.items():
        print(f"tokens per step with {k} drafts, all domains: {lengths['overall']:.2f}")
    print(f"well-formed tool calls: {_share(result['tool_call_validity'])}, exact: {_share(result['tool_call_exact'])}")
    for distance, share in result["copy_accuracy"].items():
        print(f"copied over {distance} tokens: {_share(share)}")


def _share(value: float | None) -> str:
    return "not possible with this model" if value is None else f"{100 * value:.1f} %"
