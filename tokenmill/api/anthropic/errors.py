"""Errors as Anthropic's API words them. Our `code` and `param` are kept beside its type. Pure."""

from __future__ import annotations

from typing import Any

from tokenmill.core.errors import TokenmillError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: TokenmillError, request_id: str | None = None) -> dict[str, Any]:
    told = error.to_dict() | {"type": _TYPES.get(error.status, "api_error")}
    return {"type": "error", "error": told, "request_id": request_id}


def is_messages_path(path: str) -> bool:
    """Whether the client behind a request to `path` speaks this API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")
