"""Reading a request body: media type, size, time, encoding, JSON, types; and noticing that the client has left.

Not responsible for: what the body means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import Receive

from tokenmill.api.config import LimitsConfig
from tokenmill.api.errors import SlowRequestError, UnsupportedMediaTypeError, from_validation
from tokenmill.core.errors import BadRequestError, PayloadTooLargeError

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


class ClientGoneError(Exception):
    """The client closed the connection: nobody is left to answer."""


async def read_body(request: Request, kind: type[Body], limits: LimitsConfig) -> Body:
    """The validated body, or a typed error that says what is wrong with it."""
    _check_media_type(request.headers.get("content-type", ""))
    data = await _read(request, limits)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise BadRequestError(f"byte {error.start} of the body is not valid UTF-8: send UTF-8") from None
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error) from None


def _check_media_type(content_type: str) -> None:
    """JSON only, and said so: a web page of somebody else may not send that here without asking the browser first."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaTypeError(f"content-type {kind[:60]!r} cannot be read: send application/json")


async def _read(request: Request, limits: LimitsConfig) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limits.max_body_bytes:
        raise _too_large(announced, limits)
    chunks = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunks += message.get("body", b"")
                if len(chunks) > limits.max_body_bytes:
                    raise _too_large(f"more than {limits.max_body_bytes}", limits)
                if not message.get("more_body", False):
                    return bytes(chunks)
    except TimeoutError:
        raise SlowRequestError(
            f"the body was not complete after {limits.body_timeout_s:g} s ({len(chunks)} bytes came): send it at once"
        ) from None


def _too_large(size: str, limits: LimitsConfig) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the body has {size} bytes; {limits.max_body_bytes} are possible (api.limits.max_body_bytes): send less"
    )


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; when the client leaves before it ends, cancel it, wait for its clean-up and raise ClientGoneError.

    The body must have been read: the next message that `receive` has is the disconnect.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGoneError
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
