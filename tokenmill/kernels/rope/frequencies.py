"""Rotary frequencies from a model's rope settings: plain, linear, Llama 3 and YaRN scaling. Torch-free.

Sources: "RoFormer" (arXiv 2104.09864) eq. 15; "YaRN" (arXiv 2309.00071) sections 3.2-3.4; Llama 3.1's released
reference code for the `llama3` rule. Formulas are restated at each function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rotary:
    """
    frequencies  radians per position of each of the R/2 channel pairs
    magnitude    factor on cos and sin (YaRN's attention temperature; 1 otherwise)
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0


def plain(dim: int, theta: float) -> Rotary:
    """f_i = theta^(-2i/dim)."""
    return Rotary(tuple(theta ** (-2.0 * i / dim) for i in range(dim // 2)))


def linear(dim: int, theta: float, *, factor: float) -> Rotary:
    """Position interpolation: every frequency divided by `factor`."""
    return Rotary(tuple(f / factor for f in plain(dim, theta).frequencies))


def divided(dim: int, theta: float, *, divisors: Sequence[float]) -> Rotary:
    """Every frequency divided by a number of its own, as GGUF files store Llama 3's rule."""
    return Rotary(tuple(f / d for f, d in zip(plain(dim, theta).frequencies, divisors, strict=True)))


def llama3(
    dim: int, theta: float, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_len: int
) -> Rotary:
    """Slow pairs (wavelength > L0/low) are divided by factor, quick ones kept, those between are blended."""

    def scale(frequency: float) -> float:
        turns = original_max_len * frequency / (2 * math.pi)  # turns within the original context
        if turns < low_freq_factor:
            return frequency / factor
        if turns > high_freq_factor:
            return frequency
        smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        return (1 - smooth) * frequency / factor + smooth * frequency

    return Rotary(tuple(scale(f) for f in plain(dim, theta).frequencies))


def yarn(
    dim: int,
    theta: float,
    *,
    factor: float,
    original_max_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    magnitude: float | None = None,
    truncate: bool = True,
) -> Rotary:
    """Pairs that turn more than beta_fast times in the original context are kept, fewer than beta_slow divided
    by factor, a linear ramp over the channel index between. magnitude None: 0.1 ln(factor) + 1.
    """

    def channel(turns: float) -> float:
        return dim * math.log(original_max_len / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = channel(beta_fast), channel(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = (high - low) or 0.001  # a ramp of width zero is a step

    def blend(i: int, frequency: float) -> float:
        ramp = min(max((i - low) / span, 0.0), 1.0)
        return ramp * frequency / factor + (1 - ramp) * frequency

    if magnitude is None:
        magnitude = yarn_magnitude(factor)
    return Rotary(tuple(blend(i, f) for i, f in enumerate(plain(dim, theta).frequencies)), magnitude)


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """0.1 * mscale * ln(factor) + 1 (YaRN section 3.4); 1 when the context is not extended."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
