"""The tables of `bench peers` and `bench overhead` for people. Not responsible for: measuring."""

from __future__ import annotations

from typing import Any

from tokenmill.cli.output import print_table


def peers_table(result: dict[str, Any]) -> None:
    for name, target in result["missing"].items():
        print(f"{name} is not installed: {target}")
    for name, why in result["failed"].items():
        print(f"{name} is left out: {why}")
    print_table(
        ("engine", "format", "weights MB", "perplexity", "to first token s"), [_subject(s) for s in result["subjects"]]
    )
    print_table(
        ("workload", "engine", "out tok/s", "spread", "TTFT ms", "TPOT ms", "peak Pss MiB"),
        [_figures(row) for row in result["figures"]],
    )
    print_table(
        ("workload", "peer", "tokenmill / peer", "least..most", "same tokens"),
        [_ratio(row) for row in result["ratios"]],
    )


def _subject(subject: dict[str, Any]) -> tuple[str, ...]:
    held, ppl, start_s = subject["weights_bytes"], subject["perplexity"], subject["startup_s"]
    return (
        subject["key"],
        subject["format"],
        "n/a" if held is None else f"{held / 1e6:.0f}",
        "n/a" if ppl is None else f"{ppl:.3f}",
        "n/a" if start_s is None else f"{start_s:.1f}",
    )


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["workload"],
        row["subject"],
        f"{row['output_tput_per_s']:.1f}",
        f"{row['spread']:.0%}",
        f"{row['ttft_s_p50'] * 1e3:.0f}",
        f"{row['tpot_s_p50'] * 1e3:.1f}",
        f"{row['peak_pss_bytes'] / 2**20:.0f}",
    )


def _ratio(row: dict[str, Any]) -> tuple[str, ...]:
    same = row["agreement"]
    return (
        row["workload"],
        row["peer"],
        f"{row['ratio']:.2f}",
        f"{row['ratio_least']:.2f}..{row['ratio_most']:.2f}",
        "n/a" if same is None else f"{same:.0%}",
    )


def overhead_table(result: dict[str, Any]) -> None:
    rows = [("model", result["model_ms"]), *result["parts_ms"].items(), ("step", result["step_ms"])]
    print_table(("CPU ms per step, one thread", ""), [(name, f"{ms:.3f}") for name, ms in rows])
    with_sampling = f"with sampling {result['host_share_with_sampling']:.1%}"
    print(f"host work: {result['host_share']:.1%} of a step's CPU time, {with_sampling}")
    print(f"of a step on two threads: {result['host_share_on_two_threads']:.1%}")
