"""What every HTTP request passes: an id, the key, and the promise that whatever goes wrong is answered properly.

Not responsible for: routes.
"""

from __future__ import annotations

import hmac
import logging
import re
import uuid
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.api.anthropic.errors import error_body as messages_error_body
from tokenmill.api.anthropic.errors import is_messages_path
from tokenmill.api.body import ClientGoneError
from tokenmill.api.errors import AuthenticationError, error_body, error_response
from tokenmill.api.live_page import routes as live_page
from tokenmill.core.errors import InternalError, TokenmillError

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
ANTHROPIC_KEY_HEADER = "x-api-key"
#: Probes and scrapers carry no key, and a browser asks for it only once it has the page.
_OPEN_PATHS = frozenset({"/health", "/live", "/ready", "/version", "/metrics"}) | live_page.OPEN_PATHS
_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Door:
    """Outermost ASGI layer: `scope["state"]["request_id"]` is set behind it, and every response echoes it."""

    def __init__(self, app: ASGIApp, api_key: str | None, on_error: Callable[[str], None]) -> None:
        """`on_error` hears the code of every error that is answered here."""
        self._app = app
        self._on_error = on_error
        self._api_key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER.encode(), request_id.encode())]
            await send(message)

        try:
            self._check_key(scope["path"], headers)
            await self._app(scope, receive, send_with_id)
        except ClientGoneError:
            logger.info("request %s: the client left", request_id)
        except Exception as error:
            if started:  # half an answer is out: only closing the connection can say that it is not whole
                raise
            typed = _typed(error, request_id)
            self._on_error(typed.code)
            await error_response(typed, _body(typed, scope["path"], request_id))(scope, receive, send_with_id)

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._api_key is None or path in _OPEN_PATHS:
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = (bearer if scheme.lower() == "bearer" else "", headers.get(ANTHROPIC_KEY_HEADER, ""))
        if not any(hmac.compare_digest(key.strip().encode(), self._api_key) for key in given):
            raise AuthenticationError(
                f"the API key is missing or wrong: send 'authorization: Bearer KEY' or '{ANTHROPIC_KEY_HEADER}: KEY'"
            )


def _body(error: TokenmillError, path: str, request_id: str) -> dict[str, Any]:
    """The error in the words of the API that the client speaks."""
    return messages_error_body(error, request_id) if is_messages_path(path) else error_body(error)


def _request_id(headers: Headers) -> str:
    """The client's own id where it is fit for a header and a log line."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex


def _typed(error: Exception, request_id: str) -> TokenmillError:
    if isinstance(error, TokenmillError):
        return error
    logger.error("request %s failed", request_id, exc_info=error)
    return InternalError(f"the server failed on this request: quote {request_id} when reporting it")
