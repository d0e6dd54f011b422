"""Workloads from command-line lengths: so many tokens in, so many out, an optional shared front. Pure."""

from __future__ import annotations

import hashlib

from tokenmill.core.errors import ConfigError
from tokenmill.workloads.definition import Load, Workload
from tokenmill.workloads.lengths import Fixed, Lengths, Uniform, parse_lengths


def synthetic_workload(isl: Lengths, osl: Lengths, *, num_shared: int = 0) -> Workload:
    """One turn per session; the first `num_shared` tokens are common to all prompts."""
    first = isl
    if num_shared:
        if not isinstance(isl, Fixed):
            raise ConfigError("a shared prefix needs a fixed isl: give one number, or a workload file")
        if num_shared > isl.value:
            raise ConfigError(f"a shared prefix of {num_shared} tokens exceeds isl={isl.value:g}: lower it")
        first = Fixed(isl.value - num_shared)
    return Workload(
        name="synthetic",
        version=1,
        digest=hashlib.sha256(repr((isl, osl, num_shared)).encode()).hexdigest()[:16],
        description="lengths from the command line",
        prefix_tokens=Fixed(num_shared),
        first_tokens=first,
        output_tokens=osl,
        load=Load(concurrency=16),
    )


def parse_lengths_text(text: str, option: str) -> Lengths:
    """`256`, `uniform:200:300` or `lognormal:MEDIAN:SIGMA[:MAX]`."""
    kind, *rest = text.strip().lower().split(":")
    try:
        if kind == "uniform" and len(rest) == 2:
            return parse_lengths({"uniform": [float(part) for part in rest]}, option)
        if kind == "lognormal" and len(rest) in (2, 3):
            names = ("median", "sigma", "max")
            return parse_lengths({"lognormal": dict(zip(names, map(float, rest), strict=False))}, option)
        if not rest:
            return parse_lengths(int(kind), option)
    except ValueError:
        pass
    raise ConfigError(f"{option} {text!r} is not a length: write 256, uniform:200:300 or lognormal:200:0.5:1000")


def share_of_nominal(nominal: int, low: float = 0.8) -> Uniform:
    """Lengths from `low` to all of the nominal one, as published sweeps draw them (mean 0.9 x nominal)."""
    return Uniform(round(nominal * low), nominal)
