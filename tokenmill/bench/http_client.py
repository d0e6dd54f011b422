"""aiohttp sessions for the terminal chat and the examples: one answer at a time, read as it comes.

Not responsible for: loads (client), which must not spend CPU time here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp

from tokenmill.bench.target import Target
from tokenmill.core.errors import SetupError


def open_session(read_timeout_s: float = 600.0) -> aiohttp.ClientSession:
    """A session that never makes a request wait for a connection; silence for `read_timeout_s` fails a request."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=read_timeout_s)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def first_model(session: aiohttp.ClientSession, url: str, api_key: str | None) -> str:
    """The first model that the server lists; SetupError when it cannot be asked."""
    target = Target(url, "", api_key=api_key)
    try:
        async with session.get(target.address("/v1/models"), headers=target.headers) as response:
            body = await response.json(content_type=None)
            return str(body["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
        raise SetupError(
            f"{target.address('/v1/models')} does not list a model ({type(error).__name__}: {error}): "
            "start the server, check --url and --api-key, or name the model with --model"
        ) from None


async def read_events(stream: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The data of each server-sent event up to [DONE]; comments and other fields are skipped."""
    while line := await stream.readline():
        text = line.decode("utf-8", errors="replace").strip()
        if not text.startswith("data:"):
            continue
        data = text.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        yield data
