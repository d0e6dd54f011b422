"""The page at `/`, its files, and the stream of figures behind it. Not responsible for: the figures (feed.py).

The page itself and its files are open, as they hold nothing; the figures ask for the server's key, if it has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from jinja2 import Environment
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

import tokenmill
from tokenmill.api.context import ApiContext
from tokenmill.api.errors import NoSuchRouteError, encode_json
from tokenmill.api.live_page.feed import MAX_POINTS, Feed
from tokenmill.api.sse import HEADERS
from tokenmill.core.errors import BadRequestError
from tokenmill.core.paths import read_asset

_FILES = {
    "uPlot.min.css": ("uplot/uPlot.min.css", "text/css"),
    "uPlot.iife.min.js": ("uplot/uPlot.iife.min.js", "text/javascript"),
    "report.css": ("report.css", "text/css"),
    "live.css": ("live.css", "text/css"),
    "live.js": ("live.js", "text/javascript"),
}
#: Open without the key: the door asks (door.py).
OPEN_PATHS = frozenset({"/", *(f"/assets/{name}" for name in _FILES)})
_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}
#: How soon a stream of figures notices that the server wants to stop.
_NOTICE_S = 0.5


class LivePage:
    """Handlers with the feed they show."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._template = Environment(autoescape=True).from_string(read_asset("live.html"))

    async def page(self, http: HttpRequest, context: ApiContext) -> Response:
        """Chat, throughput, latency, cache and price of this server, for people. With a key, names come with it."""
        is_open = context.config.api_key is None
        text = self._template.render(
            version=tokenmill.__version__,
            models=sorted(context.models.cards()) if is_open else [],
            now=self._feed.now() if is_open else {"points": [], "workers": []},
        )
        return Response(text, media_type="text/html", headers=_PAGE_HEADERS)

    async def file(self, http: HttpRequest, context: ApiContext) -> Response:
        """Scripts and styles of the page."""
        name = http.path_params["name"]
        if name not in _FILES:
            raise NoSuchRouteError(f"/assets/{name[:100]} is not served here: {', '.join(sorted(_FILES))} are")
        asset, media_type = _FILES[name]
        return Response(read_asset(asset), media_type=media_type, headers={"cache-control": "no-cache"})

    async def events(self, http: HttpRequest, context: ApiContext) -> Response:
        """Server-sent events: the last `points` kept (default all), then a point every two seconds."""
        given = http.query_params.get("points", str(MAX_POINTS))
        if not (given.isascii() and given.isdigit()):
            raise BadRequestError(f"points={given[:50]!r} is not possible: give a whole number from 0", param="points")
        headers = {name.decode(): value.decode() for name, value in HEADERS}
        return StreamingResponse(_until_draining(self._feed.watch(int(given[:9])), context), headers=headers)


async def _until_draining(points: AsyncIterator[dict[str, Any]], context: ApiContext) -> AsyncIterator[bytes]:
    """Nobody's answer: a server that stops does not wait for those who watch it."""
    nextest = asyncio.ensure_future(anext(points))
    try:
        while not context.lifecycle.is_draining:
            done, _ = await asyncio.wait({nextest}, timeout=_NOTICE_S)
            if done:
                yield b"data: " + encode_json(nextest.result()) + b"\n\n"
                nextest = asyncio.ensure_future(anext(points))
    finally:
        nextest.cancel()
