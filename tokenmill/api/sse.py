"""Server-sent events: one HTTP response that is written while the answer grows. Not responsible for: what is in it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from starlette.types import Send

from tokenmill.api.errors import encode_json, error_body
from tokenmill.core.errors import InternalError, TokenmillError

logger = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventWriter:
    """Encodes events that share their first keys (id, object, created, model), which are encoded once."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._head = b"data: " + encode_json(shared)[:-1] + b","

    def event(self, rest: Mapping[str, Any]) -> bytes:
        return self._head + encode_json(rest)[1:] + b"\n\n"


def error_event(error: TokenmillError) -> bytes:
    return b"data: " + encode_json(error_body(error)) + b"\n\n"


class Ending(Protocol):
    """How an API ends its streams."""

    end: bytes

    def error(self, error: TokenmillError) -> bytes: ...


async def send_events(
    send: Send,
    first: bytes,
    rest: AsyncIterator[bytes],
    ending: Ending,
    request_id: str,
    on_error: Callable[[str], None],
) -> None:
    """Status 200, the events, the end; a failure on the way becomes one last error event in place of the end."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": first, "more_body": True})
    try:
        async for event in rest:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        end = ending.end
    except TokenmillError as error:
        on_error(error.code)
        end = ending.error(error)
    except Exception:
        logger.exception("request %s failed", request_id)
        on_error(InternalError.code)
        end = ending.error(InternalError(f"the request failed: quote {request_id} when reporting it"))
    await send({"type": "http.response.body", "body": end, "more_body": False})
