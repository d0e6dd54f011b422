"""When sessions start, as plain lists of seconds. Not responsible for: waiting (bench) or what is asked (sessions)."""

from __future__ import annotations

import random
from collections.abc import Sequence


def arrival_times(num_requests: int, rate_per_s: float, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Seconds from the start at which each request is due, in order; the first at 0.

    rate_per_s  mean rate; infinity: all at once
    burstiness  shape of the gamma-distributed gaps: 1 is Poisson, below 1 burstier, infinity evenly spaced
    """
    return ramp_times(num_requests, [rate_per_s], burstiness=burstiness, seed=seed)


def ramp_times(
    num_requests: int, rates_per_s: Sequence[float], *, burstiness: float = 1.0, seed: int = 0
) -> list[float]:
    """As `arrival_times`, the rate going straight from each of `rates_per_s` to the next over the requests."""
    assert num_requests >= 0 and burstiness > 0 and all(rate > 0 for rate in rates_per_s), f"{rates_per_s=}"
    rng, now_s, times = random.Random(seed), 0.0, []
    for index in range(num_requests):
        times.append(now_s)
        rate = _rate_at(rates_per_s, index / max(1, num_requests - 1))
        now_s += 0.0 if rate == float("inf") else _gap(rng, 1 / rate, burstiness)
    return times


def _rate_at(rates: Sequence[float], share: float) -> float:
    """Piecewise linear; `share` of the way from the first rate to the last."""
    if len(rates) == 1:
        return rates[0]
    position = share * (len(rates) - 1)
    low = min(int(position), len(rates) - 2)
    return rates[low] + (rates[low + 1] - rates[low]) * (position - low)


def _gap(rng: random.Random, mean_s: float, burstiness: float) -> float:
    return mean_s if burstiness == float("inf") else rng.gammavariate(burstiness, mean_s / burstiness)
