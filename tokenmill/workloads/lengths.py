"""Distributions of lengths and times in workload files: fixed, uniform, lognormal. Not responsible for: what they size.

Written as a plain number (fixed), `{uniform: [low, high]}` or `{lognormal: {median: m, sigma: s, min: a, max: b}}`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.core.errors import ConfigError

_FORMS = "a number, {uniform: [low, high]} or {lognormal: {median: m, sigma: s, max: b}}"


class Lengths(Protocol):
    """Draws numbers; `scaled(f)` is the same shape, f times as large."""

    def draw(self, rng: random.Random) -> float: ...
    def mean(self) -> float: ...
    def largest(self) -> float: ...
    def scaled(self, factor: float) -> Lengths: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    value: float

    def draw(self, rng: random.Random) -> float:
        return self.value

    def mean(self) -> float:
        return self.value

    def largest(self) -> float:
        return self.value

    def scaled(self, factor: float) -> Fixed:
        return Fixed(self.value * factor)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every number between the two is as likely."""

    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        return rng.uniform(self.low, self.high)

    def mean(self) -> float:
        return (self.low + self.high) / 2

    def largest(self) -> float:
        return self.high

    def scaled(self, factor: float) -> Uniform:
        return Uniform(self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """`sigma` of the logarithm; draws outside [low, high] are set to the bound, so the median is kept."""

    median: float
    sigma: float
    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        return min(max(rng.lognormvariate(math.log(self.median), self.sigma), self.low), self.high)

    def mean(self) -> float:
        """Of the clipped distribution, by its quantiles."""
        normal = [_quantile((i + 0.5) / 200) for i in range(200)]
        drawn = (self.median * math.exp(self.sigma * z) for z in normal)
        return sum(min(max(value, self.low), self.high) for value in drawn) / len(normal)

    def largest(self) -> float:
        return self.high

    def scaled(self, factor: float) -> Lognormal:
        return Lognormal(self.median * factor, self.sigma, self.low * factor, self.high * factor)


NONE, ONE = Fixed(0), Fixed(1)


def parse_lengths(value: Any, path: str) -> Lengths:
    """`value` as it stands in a workload file; ConfigError names `path`."""
    try:
        return _parse(value)
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ConfigError(f"workload: {path}={value!r} is not a distribution ({error}): write {_FORMS}") from None


def _parse(value: Any) -> Lengths:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Fixed(_positive(value))
    ((kind, body),) = value.items()
    if kind == "fixed":
        return Fixed(_positive(body))
    if kind == "uniform":
        low, high = (_positive(bound) for bound in body)
        if low > high:
            raise ValueError(f"{low:g} > {high:g}")
        return Uniform(low, high)
    if kind == "lognormal":
        median, sigma = _positive(body["median"]), _positive(body["sigma"])
        low, high = _positive(body.get("min", 0)), _positive(body.get("max", median * math.exp(4 * sigma)))
        if not (median > 0 and low <= median <= high) or set(body) - {"median", "sigma", "min", "max"}:
            raise ValueError("median must be positive and between min and max; no other keys")
        return Lognormal(median, sigma, low, high)
    raise ValueError(f"{kind!r} is unknown")


def _positive(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is negative or not finite")
    return number


def _quantile(p: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)
