"""`tokenmill bench kernels`: flags and table. Not responsible for: measuring (bench/kernels)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from tokenmill.cli.bench_options import JSON, OUTPUT, finish, numbers
from tokenmill.cli.output import note, print_table


def add_to(app: typer.Typer) -> None:
    app.command()(kernels)


def kernels(
    outputs: int = typer.Option(3072, min=1, help="Outputs of the weight that is multiplied."),
    inputs: int = typer.Option(576, min=1, help="Inputs of it; a multiple of 32."),
    formats: str = typer.Option("bf16,int8,int4,nvfp4", help="Of weights."),
    rows: str = typer.Option("1,2,4,8,16,32,64,128,256", help="Rows that are multiplied at once."),
    threads: int = typer.Option(1, min=1, help="1 is timed by CPU time, which a busy machine hardly disturbs."),
    repeats: int = typer.Option(3, min=1, help="The best counts, for kernels and ceilings alike."),
    output: Path | None = OUTPUT,
    as_json: bool = JSON,
) -> None:
    """C kernels beside a streaming read and register-only products, measured in the same run."""
    from tokenmill.bench.kernels import KernelBench, run_kernel_bench

    bench = KernelBench(outputs, inputs, tuple(formats.split(",")), tuple(numbers(rows, "--rows")), threads, repeats)
    finish(run_kernel_bench(bench, note), kernel_table, output, as_json=as_json)


def kernel_table(result: dict[str, Any]) -> None:
    ceilings = result["ceilings"]
    print(
        f"ceilings: {ceilings['read_bytes_per_s'] / 1e9:.1f} GB/s read, {ceilings['bf16_ops_per_s'] / 1e9:.0f} GFLOP/s "
        f"bf16, {ceilings['int8_ops_per_s'] / 1e9:.0f} GOP/s int8, {result['kernels']['num_threads']} thread(s)"
    )
    rows = [
        (
            point["op"],
            point["format"],
            str(point["rows"]),
            f"{point['seconds'] * 1e6:.1f}",
            f"{point['bytes_per_s'] / 1e9:.1f}",
            f"{point['read_share']:.0%}",
            f"{point['ops_per_s'] / 1e9:.0f}",
            f"{point['ops_share']:.0%}",
            f"{point['bound_share']:.0%}",
        )
        for point in result["results"]
    ]
    print_table(("op", "format", "rows", "µs", "GB/s", "of read", "GOP/s", "of peak", "of bound"), rows)
