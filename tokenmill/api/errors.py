"""OpenAI error bodies: for typed errors, for bodies that do not validate, for HTTP-level refusals, for our own bugs.

    TokenmillError                     (core/errors.py)
    └── HttpError                      refusals that only the HTTP door knows
        ├── AuthenticationError        401
        ├── NoSuchRouteError           404
        ├── MethodNotAllowedError      405
        ├── SlowRequestError           408
        └── UnsupportedMediaTypeError  415

Not responsible for: which error is raised where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from tokenmill.core.errors import BadRequestError, TokenmillError

#: Seconds that a client should wait before it repeats a request which failed for a passing reason.
RETRY_AFTER_S = 1

#: Fields whose values are people's text: never repeated in an error or a log.
_PRIVATE_FIELDS = frozenset(
    {"prompt", "messages", "suffix", "input", "instructions", "system", "metadata", "tools", "user"}
)
_MAX_QUOTED_CHARS = 60

encode_json = msgspec.json.Encoder().encode


class HttpError(TokenmillError):
    """`headers` go with the answer."""

    type = "invalid_request_error"
    default_headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, param=param)
        self.headers = {**self.default_headers, **(headers or {})}


class AuthenticationError(HttpError):
    status, code = 401, "invalid_api_key"
    default_headers: ClassVar[Mapping[str, str]] = {"www-authenticate": "Bearer"}


class NoSuchRouteError(HttpError):
    status, code = 404, "not_found"


class MethodNotAllowedError(HttpError):
    status, code = 405, "method_not_allowed"


class SlowRequestError(HttpError):
    """The rest of the request may still arrive, so the connection can not be used again."""

    status, code = 408, "request_timeout"
    default_headers: ClassVar[Mapping[str, str]] = {"connection": "close"}


class UnsupportedMediaTypeError(HttpError):
    status, code = 415, "unsupported_media_type"


def error_body(error: TokenmillError) -> dict[str, Any]:
    return {"error": error.to_dict()}


def error_response(error: TokenmillError, body: dict[str, Any] | None = None) -> Response:
    """`body`: the error as another API words it."""
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if error.status == 413:  # the unread rest of the body would be taken for the next request
        headers["connection"] = "close"
    if error.retryable:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return Response(encode_json(body or error_body(error)), error.status, headers, "application/json")


def json_response(body: Any, status: int = 200) -> Response:
    return Response(encode_json(body), status, media_type="application/json")


def from_validation(error: ValidationError) -> BadRequestError:
    """The first problem of a request body, with its path as `param`."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return BadRequestError(f"the body is not valid JSON ({_reason(first['msg'])}): send one JSON object")
    path = path_text(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if not path:
        return BadRequestError(f"{message}: send one JSON object")
    if first["type"] == "missing":
        return BadRequestError(f"{path} is missing: it is required", param=path)
    return BadRequestError(f"{path}{_quoted(first)}: {message[:1].lower()}{message[1:]}", param=path)


def path_text(loc: tuple[int | str, ...]) -> str:
    """('messages', 0, 'role') -> 'messages[0].role'."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path


def _quoted(problem: Any) -> str:
    """'=value' where the value is short and not somebody's text."""
    value = problem["input"]
    is_private = problem["loc"][0] in _PRIVATE_FIELDS
    if is_private or not isinstance(value, str | int | float | bool | None):
        return ""
    shown = repr(value) if not isinstance(value, bool | None) else {True: "true", False: "false", None: "null"}[value]
    return f"={shown}" if len(shown) <= _MAX_QUOTED_CHARS else ""


def _reason(message: str) -> str:
    return message.removeprefix("Invalid JSON: ")
