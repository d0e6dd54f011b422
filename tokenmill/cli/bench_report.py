"""Tables of benchmark results for people; the JSON object has everything. Not responsible for: measuring."""

from __future__ import annotations

from typing import Any

from tokenmill.cli.output import print_table


def serve_table(result: dict[str, Any]) -> None:
    settings = result["settings"]
    rate, concurrency = settings["request_rate"], settings["concurrency"]
    load = f"{rate} requests/s" if rate else f"{concurrency} in flight"
    print(
        f"{settings['model']} at {settings['url']}, {load}: {result['num_ok']} of {result['num_requests']} requests ok"
    )
    for error, count in result["errors"].items():
        print(f"  failed: {count} x {error}")
    rows = [
        ("request throughput (1/s)", _number(result["request_tput_per_s"])),
        ("output throughput (tok/s)", _number(result["output_tput_per_s"])),
        ("total throughput (tok/s)", _number(result["total_tput_per_s"])),
        ("uncached input throughput (tok/s)", _number(result["uncached_input_tput_per_s"])),
        ("in flight, mean", _number(result["num_in_flight_mean"])),
        ("prompt / output tokens, mean", f"{_number(result['isl_mean'])} / {_number(result['osl_mean'])}"),
        ("interactivity, p50 (tok/s/user)", _number(result["interactivity_p50"])),
        *_goodput_rows(result),
        *_cost_rows(result),
    ]
    print_table(("", "value"), rows)
    names = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
    levels = ("mean", "p50", "p90", "p99")
    print_table(("ms", *levels), [(name, *(_ms(result[f"{key}_{level}"]) for level in levels)) for name, key in names])


def throughput_table(result: dict[str, Any]) -> None:
    settings, engine, environment = result["settings"], result["engine"], result["environment"]
    print(
        f"{settings['model']}: {settings['num_prompts']} prompts, {settings['isl']} + {settings['osl']} tokens, "
        f"{engine['dtype']}, {environment['num_cores']:g} cores, load average {environment['load_average_1m']:.1f}"
    )
    names = ["tokenmill"] + ([settings["against"]] if settings["against"] else [])
    rows = [
        (
            name,
            _number(result[name]["seconds_p50"]),
            _number(result[name]["output_tput_per_s"]),
            _number(result[name]["total_tput_per_s"]),
            _usd(result[name]["usd_per_mtok_output"]),
            _number(result[name]["joules_per_token"]),
        )
        for name in names
    ]
    print_table(("system", "seconds", "output tok/s", "total tok/s", "$/M output", "J/output token"), rows)
    print(result["rate_source"])
    if settings["against"]:
        peer = result[settings["against"]]
        print(
            f"{settings['against']} at its best: batch {peer['batch_size']}, {peer['attention']} attention, "
            f"{peer['num_threads']} threads; answers agree up to {peer['common_prefix_share']:.0%} of their length"
        )
        print(f"ratio tokenmill / {settings['against']}: {result['ratio']:.2f}")


def _goodput_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    if result["slo"] is None:
        return []
    share = result["num_good_requests"] / max(1, result["num_requests"])
    return [
        (f"goodput under {result['slo']} ({result['slo_source']}) (tok/s)", _number(result["goodput_tokens_per_s"])),
        ("good requests", f"{share:.0%}"),
    ]


def _cost_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    if result["device_hour_usd"] is None:
        return [("cost", "unknown: give --price-per-hour")]
    kinds = " / ".join(_usd(result[f"usd_per_mtok_{kind}"]) for kind in ("total", "output", "good"))
    rows = [("$/M tokens: total / output / good", kinds), ("devices paid for", str(result["num_devices"]))]
    if result["joules_per_token"] is not None:
        rows.append(("J per output token", _number(result["joules_per_token"])))
    return rows


def _number(value: float | None) -> str:
    """Three digits that matter, or the whole part."""
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _usd(value: float | None) -> str:
    return "-" if value is None else f"${value:.4g}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.1f}"
