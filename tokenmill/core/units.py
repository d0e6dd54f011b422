"""Parsing and printing of sizes and durations; inside the code everything is plain bytes and seconds."""

from __future__ import annotations

import re

from tokenmill.core.errors import ConfigError

_SIZES = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
          "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-zA-Z]*)\s*$")


def parse_bytes(text: str | int) -> int:
    """'1.5GiB' -> 1610612736; a bare number is bytes; GB = 1e9, GiB = 2**30."""
    return int(_parse(str(text), _SIZES, "size", "e.g. 512MiB, 4GiB"))


def parse_seconds(text: str | float) -> float:
    """'250ms' -> 0.25; a bare number is seconds."""
    return float(_parse(str(text), _SECONDS, "duration", "e.g. 250ms, 30s, 5m"))


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    match = _NUMBER.match(text)
    unit = match and units.get(match.group(2).lower())
    if not match or unit is None:
        raise ConfigError(f"{text!r} is not a {what}: write a number with a unit, {example}")
    return float(match.group(1)) * unit


def format_bytes(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
