"""When requests arrive, as plain lists of seconds. Not responsible for: waiting (bench) or what is asked (prompts)."""

from __future__ import annotations

import random


def arrival_times(num_requests: int, rate_per_s: float, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Seconds from the start at which each request is due, in order; the first at 0.

    rate_per_s  mean rate; infinity: all at once
    burstiness  shape of the gamma-distributed gaps: 1 is Poisson, below 1 burstier, infinity evenly spaced
    """
    assert num_requests >= 0 and rate_per_s > 0 and burstiness > 0, f"{num_requests=} {rate_per_s=} {burstiness=}"
    if rate_per_s == float("inf"):
        return [0.0] * num_requests
    rng, now_s, times = random.Random(seed), 0.0, []
    for _ in range(num_requests):
        times.append(now_s)
        now_s += _gap(rng, 1 / rate_per_s, burstiness)
    return times


def _gap(rng: random.Random, mean_s: float, burstiness: float) -> float:
    return mean_s if burstiness == float("inf") else rng.gammavariate(burstiness, mean_s / burstiness)
