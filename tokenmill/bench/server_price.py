"""What the measured server's devices cost, from its own /metrics when it is a tokenmill. Not responsible for: sums."""

from __future__ import annotations

import re

from tokenmill.bench.client import Client
from tokenmill.bench.target import Target
from tokenmill.core import metric_names
from tokenmill.core.errors import SetupError

_SAMPLE = re.compile(rf"^{metric_names.DEVICE_USD_PER_HOUR.name}(?:{{[^}}]*}})?\s+(\S+)", re.MULTILINE)


async def server_usd_per_hour(client: Client, target: Target) -> float | None:
    """Sum over all its workers; None when the server does not say (another engine, or no route /metrics)."""
    try:
        status, body = await client.get(target, "/metrics")
    except SetupError:
        return None
    return parse_usd_per_hour(body.decode(errors="replace")) if status == 200 else None


def parse_usd_per_hour(metrics: str) -> float | None:
    samples = [float(value) for value in _SAMPLE.findall(metrics)]
    return sum(samples) if samples else None
