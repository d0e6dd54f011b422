"""Reads a server's stream of figures and shows it. Not responsible for: the figures (api/live_page/feed)."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tokenmill.bench.http_client import open_session, read_events
from tokenmill.bench.target import Target
from tokenmill.core.errors import UnavailableError

#: One reading of the stream: the newest point (None before the first) and the workers.
News = dict[str, Any]
#: The server sends a point every two seconds: silence for so long means that it is gone.
_SILENCE_S = 20.0


async def watch(url: str, api_key: str | None, count: int) -> AsyncIterator[News]:
    """`count` looks (0: as many as there are); ends when the server stops. UnavailableError when nobody answers."""
    target = Target(url, "", api_key=api_key)
    try:
        async with (
            open_session(_SILENCE_S) as session,
            session.get(target.address("/live/events?points=1"), headers=target.headers) as response,
        ):
            if response.status != 200:
                raise UnavailableError(f"{url} answers with {response.status}: check --url and --api-key")
            num_left = count
            async for data in read_events(response.content):
                event = json.loads(data)
                yield {"point": (event["points"] or [None])[-1], "workers": event["workers"]}
                num_left -= 1
                if num_left == 0:
                    return
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        name = type(error).__name__
        raise UnavailableError(f"no tokenmill server to watch at {url} ({name}: {error}): give its --url") from None


async def show_lines(looks: AsyncIterator[News]) -> None:
    async for look in looks:
        print(json.dumps(look), flush=True)


async def show_screen(looks: AsyncIterator[News], url: str) -> None:
    with Live(Text(f"waiting for {url}"), auto_refresh=False, screen=sys.stdout.isatty()) as live:
        async for look in looks:
            live.update(screen(look, url), refresh=True)


def screen(look: News, url: str) -> Group:
    return Group(Text(f"tokenmill at {url}", style="bold"), _figures(look["point"]), _workers(look["workers"]))


def _figures(point: dict[str, Any] | None) -> Table | Text:
    if point is None:
        return Text("no figures yet")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in figures(point).items():
        table.add_row(Text(name, style="dim"), value)
    return table


def figures(point: dict[str, Any]) -> dict[str, str]:
    return {
        "$ / M tokens now": _usd(point["usd_per_mtok_now"]),
        "$ / M tokens so far": _usd(point["usd_per_mtok"]),
        "$ / M output tokens": _usd(point["usd_per_mtok_output"]),
        "bill": _usd(point["usd"]),
        "output tok/s": f"{point['generation_tok_per_s']:.1f}",
        "prompt tok/s": f"{point['prompt_tok_per_s']:.1f}",
        "TTFT p50 / p99": _pair(point["ttft_s"]),
        "TPOT p50 / p99": _pair(point["tpot_s"]),
        "running / waiting": f"{point['running']} / {point['waiting']}",
        "prefix hits": _percent(point["prefix_hit_share"]),
        "KV in use": _percent(point["kv_usage"]),
        "busy": _percent(point["busy_share"]),
        "tokens per draft": "-" if point["acceptance_length"] is None else f"{point['acceptance_length']:.2f}",
    }


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = Table("worker", "model", "state", "running", "waiting", "KV in use", "restarts", pad_edge=False)
    for worker in workers:
        state = worker["state"] + (f": {worker['reason']}" if worker["reason"] else "")
        counts = (str(worker["running"]), str(worker["waiting"]), _percent(worker["kv_usage"]), str(worker["restarts"]))
        table.add_row(worker["worker_id"], worker["model"], state, *counts)
    return table


def _usd(value: float | None) -> str:
    return "-" if value is None else f"${value:.4g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _pair(quantiles: dict[str, float] | None) -> str:
    return "-" if quantiles is None else f"{1e3 * quantiles['p50']:.1f} / {1e3 * quantiles['p99']:.1f} ms"
