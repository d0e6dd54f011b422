"""The table of a simulated run: the one of `bench serve`, then the fleet and its bill."""

from __future__ import annotations

from typing import Any

from tokenmill.cli.bench_report import serve_table
from tokenmill.cli.output import print_table


def simulate_table(result: dict[str, Any]) -> None:
    serve_table(result)
    fleet, ledger, twin = result["fleet"], result["ledger"], result["twin"]
    used = fleet["num_devices"] - fleet["num_idle_devices"]
    print(
        f"{fleet['num_workers']} workers of {fleet['layout']} on {used} of {fleet['num_devices']} {fleet['hardware']}, "
        f"{fleet['router']}; {twin['virtual_s']:.1f} s passed in {twin['cpu_s']:.1f} s of CPU time"
    )
    lines = [(line, f"{usd:.4f}") for line, usd in ledger["usd_by_line"].items() if usd]
    print_table(("ledger, start-up included", "$"), [*lines, ("all", f"{ledger['usd']:.4f}")])
