"""What the measured server's devices cost, from its own /metrics when it is a tokenmill. Not responsible for: sums."""

from __future__ import annotations

import re

import aiohttp

from tokenmill.bench.http_client import Target
from tokenmill.core import metric_names

_SAMPLE = re.compile(rf"^{metric_names.DEVICE_USD_PER_HOUR.name}(?:{{[^}}]*}})?\s+(\S+)", re.MULTILINE)


async def server_usd_per_hour(session: aiohttp.ClientSession, target: Target) -> float | None:
    """Sum over all its workers; None when the server does not say (another engine, or no route /metrics)."""
    try:
        async with session.get(target.address("/metrics"), headers=target.headers) as response:
            text = await response.text(errors="replace") if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return None
    return parse_usd_per_hour(text)


def parse_usd_per_hour(metrics: str) -> float | None:
    samples = [float(value) for value in _SAMPLE.findall(metrics)]
    return sum(samples) if samples else None
