"""Tables of benchmark results for people; the JSON object has everything. Not responsible for: measuring."""

from __future__ import annotations

from typing import Any

from tokenmill.cli.output import print_table


def serve_table(result: dict[str, Any]) -> None:
    settings = result["settings"]
    models = ", ".join(settings["models"])
    print(
        f"{models} at {settings['url']}, {_load(settings)}: {result['num_ok']} of {result['num_requests']} requests ok"
    )
    for error, count in result["errors"].items():
        print(f"  failed: {count} x {error}")
    rows = [
        ("request throughput (1/s)", _number(result["request_tput_per_s"])),
        ("output throughput (tok/s)", _number(result["output_tput_per_s"])),
        ("total throughput (tok/s)", _number(result["total_tput_per_s"])),
        ("uncached input throughput (tok/s)", _number(result["uncached_input_tput_per_s"])),
        ("prompt tokens from the server's cache", _share(result["cached_share"])),
        ("in flight, mean", _number(result["num_in_flight_mean"])),
        ("prompt / output tokens, mean", f"{_number(result['isl_mean'])} / {_number(result['osl_mean'])}"),
        ("interactivity, p50 (tok/s/user)", _number(result["interactivity_p50"])),
        *_steady_rows(result["steady"]),
        *_goodput_rows(result),
        *_cost_rows(result),
    ]
    print_table(("", "value"), rows)
    names = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("E2E", "e2e_s"))
    levels = ("mean", "p50", "p90", "p99")
    print_table(("ms", *levels), [(name, *(_ms(result[f"{key}_{level}"]) for level in levels)) for name, key in names])
    for problem in result["problems"]:
        print(f"note: {problem}")


def _load(settings: dict[str, Any]) -> str:
    what = settings["trace"] or settings["workload"]
    if settings["workload_scale"] not in (None, 1.0):
        what += f" x {settings['workload_scale']:.3g}"
    rate, concurrency = settings["request_rate"], settings["concurrency"]
    return f"{what}, {rate} sessions/s" if rate else f"{what}, {concurrency} in flight" if concurrency else what


def _steady_rows(steady: dict[str, Any] | None) -> list[tuple[str, str]]:
    if steady is None:
        return [("steady part", "none: longer runs have one")]
    return [
        ("steady part: seconds / in flight", f"{steady['duration_s']:.1f} / {_number(steady['num_in_flight_mean'])}"),
        (
            "steady part: output / total (tok/s)",
            " / ".join(_number(steady[f"{kind}_tput_per_s"]) for kind in ("output", "total")),
        ),
    ]


def workloads_table(result: dict[str, Any]) -> None:
    names = ("turns_per_session", "isl_mean", "osl_mean", "reusable_share", "sub_agents_per_session")
    rows = [
        (
            row["name"],
            row["version"],
            row["digest"],
            *(_number(row[name]) for name in names),
            row["kv_pool_share"],
            row["slo"] or "-",
        )
        for row in result["workloads"]
    ]
    headers = ("workload", "version", "hash", "turns", "prompt", "answer", "reusable", "sub-agents", "KV pool", "SLO")
    print_table(headers, rows)


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
            f"{peer['experts'] + ' experts, ' if peer['experts'] else ''}"
            f"{peer['num_threads']} threads; answers agree up to {peer['common_prefix_share']:.0%} of their length"
        )
        print(f"ratio tokenmill / {settings['against']}: {result['ratio']:.2f}")


def context_table(result: dict[str, Any]) -> None:
    model, peaks, points = result["model"], result["peaks"], result["contexts"]
    print(
        f"{result['settings']['model'] or 'synthetic DeepSeek V4'}: {model['num_parameters'] / 1e6:.0f}M parameters, "
        f"{model['hidden_size']} wide, ratios {model['compress_ratios']}, {model['kernels']}; rows of "
        f"{model['kv_row_bytes']} B, index keys of {model['index_row_bytes']} B"
    )
    print(
        f"this machine: {peaks['read_bytes_per_s'] / 1e9:.1f} GB/s read, {peaks['flops_per_s'] / 1e9:.0f} GFLOP/s, "
        f"{peaks['num_threads']} threads, load average {result['environment']['load_average_1m']:.1f}"
    )
    rows = [
        (
            point["num_tokens"],
            point["live_bytes"],
            point["mtp_window_bytes"],
            point["allocated_bytes"],
            _ms(point["step_s_p50"]),
            _ms(point["roofline_s"]),
            _number(point["ratio"]),
        )
        for point in points
    ]
    headers = ("tokens", "live KV bytes", "+ MTP window", "allocated bytes", "ms/token", "roofline ms", "ratio")
    print_table(headers, rows)
    if result["fit"]:
        print(f"time = {result['fit']['slope']:.2f} x roofline + {result['fit']['intercept_s'] * 1e3:.1f} ms (fitted)")
    _retention_table(result["retention"])
    print(f"peak memory of this process: {result['peak_memory_bytes'] / 2**30:.1f} GiB")


def _retention_table(retention: dict[str, Any]) -> None:
    print(f"window rows and state kept for prefix hits, prefix of {retention['prefix_tokens']} tokens:")
    rows = [
        (
            policy["policy"],
            f"{policy['kept_bytes_per_block']:.0f}",
            f"{policy['recomputed_tokens']:.0f}",
            f"{policy['hit_flops'] / 1e9:.1f}",
        )
        for policy in retention["policies"]
    ]
    kept = f"bytes kept per {retention['block_size']} tokens"
    print_table(("policy", kept, "tokens recomputed per hit", "GFLOP per hit"), rows)


def _goodput_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    if result["slo"] is None:
        return []
    share = result["good_share"] or 0.0
    return [
        (f"goodput under {result['slo']} ({result['slo_source']}) (tok/s)", _number(result["goodput_tokens_per_s"])),
        ("good requests; objectives met at p99", f"{share:.0%}; {'yes' if result['slo_met_p99'] else 'no'}"),
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


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _usd(value: float | None) -> str:
    return "-" if value is None else f"${value:.4g}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.1f}"


def generator_table(result: dict[str, Any]) -> None:
    print(
        f"{result['num_tokens']} streamed tokens in {result['cpu_s']:.2f} CPU s of the generator: "
        f"{result['tokens_per_cpu_s']:.0f} tokens per CPU second; TPOT {result['tpot_ms_p50']:.2f} ms where the "
        f"server ticks every {result['settings']['tick_ms']:g} ms"
    )
    for problem in result["problems"]:
        print(f"note: {problem}")


def pareto_table(result: dict[str, Any]) -> None:
    headers = ("curve", "conc.", "tok/s/device", "tok/s/user", "TTFT ms", "$/M total", "$/M output", "J/token", "")
    rows = [
        (
            point["curve"],
            point["concurrency"],
            _number(point["tput_per_gpu"]),
            _number(point["interactivity"]),
            _ms(point["ttft_s_p50"]),
            _usd(point["usd_per_mtok_total"]),
            _usd(point["usd_per_mtok_output"]),
            _number(point["joules_per_token"]),
            "on the frontier" if point["concurrency"] in result["frontiers"][point["curve"]] else "",
        )
        for point in result["points"]
    ]
    print_table(headers, rows)
    print(f"written: {', '.join(result['files'].values())}")


def compare_table(result: dict[str, Any]) -> None:
    base = result["base"]
    labels = list(result["rounds"][0])
    others = [label for label in labels if label != base]
    rows = []
    for name, compared in result["metrics"].items():
        row = [name + (" (more is better)" if compared["more_is_better"] else "")]
        row += [_number(compared["median"].get(label)) for label in (base, *others)]
        for label in others:
            ratio = compared["ratio"].get(label)
            row.append(f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "-")
        rows.append(row)
    print_table(("median", base, *others, *(f"{label} / {base}" for label in others)), rows)
    for problem in result["problems"][:5]:
        print(f"note: {problem}")
