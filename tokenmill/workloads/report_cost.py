"""Dollars and joules of a measured run, from its token counts, its time and the price of its devices. Pure."""

from __future__ import annotations


def cost_report(
    *,
    duration_s: float,
    num_input_tokens: int,
    num_output_tokens: int,
    num_good_tokens: int | None,
    usd_per_hour: float | None,
    watts: float | None,
    num_devices: int = 1,
) -> dict[str, float | int | None]:
    """`usd_per_mtok_{total,output,good}`, `joules_per_token`, `tok_s_per_mw` and the devices they divide by.

    usd_per_hour, watts  of one device, all devices are paid for whether busy or not; None: not known, so None
    joules_per_token     per output token, all energy charged to the output
    tok_s_per_mw         output tokens per second and megawatt
    """
    hours_usd = None if usd_per_hour is None else usd_per_hour * num_devices * duration_s / 3600
    joules = None if watts is None else watts * num_devices * duration_s
    num_total = num_input_tokens + num_output_tokens
    return {
        "num_devices": num_devices,
        "device_hour_usd": usd_per_hour,
        "watts_per_device": watts,
        "usd_total": hours_usd,
        "joules_total": joules,
        "usd_per_mtok_total": _per(hours_usd, num_total, 1e6),
        "usd_per_mtok_output": _per(hours_usd, num_output_tokens, 1e6),
        "usd_per_mtok_good": None if num_good_tokens is None else _per(hours_usd, num_good_tokens, 1e6),
        "joules_per_token": _per(joules, num_output_tokens, 1.0),
        "tok_s_per_mw": _per(num_output_tokens, joules, 1e6),
    }


def _per(amount: float | None, count: float | None, scale: float) -> float | None:
    return None if amount is None or not count else amount / count * scale
