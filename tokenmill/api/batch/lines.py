"""Lines of OpenAI batch files: requests in, answers out, and which requests an earlier run has answered. Pure.

Not responsible for: answering (run.py), what is in a body (the HTTP door checks it).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_PASSING = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """`number` counts lines of the file from 1."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request; it becomes an error line, so that nothing is lost."""

    number: int
    custom_id: str | None
    code: str
    message: str


def read_requests(lines: Iterable[bytes], max_line_bytes: int) -> Iterator[BatchRequest | BadLine]:
    """Every line that is not blank, in order; of a custom_id that comes twice only the first is a request."""
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        read = _read_line(number, line, max_line_bytes)
        if isinstance(read, BatchRequest) and read.custom_id in seen:
            read = BadLine(number, read.custom_id, "duplicate_custom_id", "an earlier line has this custom_id")
        elif isinstance(read, BatchRequest):
            seen.add(read.custom_id)
        yield read


def first_model(lines: Iterable[bytes], max_line_bytes: int) -> str | None:
    """The model that the first request names."""
    models = (read.body.get("model") for read in read_requests(lines, max_line_bytes) if isinstance(read, BatchRequest))
    return next((model for model in models if isinstance(model, str) and model), None)


def _read_line(number: int, line: bytes, max_line_bytes: int) -> BatchRequest | BadLine:
    if len(line) > max_line_bytes:
        return BadLine(number, None, "line_too_large", f"it has {len(line)} bytes; {max_line_bytes} are possible")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine(number, None, "invalid_json_line", f"it is no JSON: {error}")
    if not isinstance(value, dict):
        return BadLine(number, None, "invalid_json_line", "it must be an object with custom_id, method, url and body")
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return BadLine(number, None, "invalid_custom_id", "custom_id must be a text that is not empty")
    problem = _problem(value)
    if problem is not None:
        return BadLine(number, custom_id, *problem)
    return BatchRequest(number, custom_id, value["url"], value["body"])


def _problem(value: dict[str, Any]) -> tuple[str, str] | None:
    if value.get("method", "POST") != "POST":
        return "invalid_method", "method must be POST"
    if value.get("url") not in URLS:
        return "invalid_url", f"url must be one of {', '.join(URLS)}"
    if not isinstance(value.get("body"), dict):
        return "invalid_body", "body must be an object"
    if value["body"].get("stream"):
        return "invalid_body", "body.stream must be left out: answers go to a file"
    return None


def answer_line(line_id: str, request: BatchRequest, status: int, request_id: str, body: Any) -> dict[str, Any]:
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": line_id, "custom_id": request.custom_id, "response": response, "error": None}


def error_line(line_id: str, bad: BadLine) -> dict[str, Any]:
    error = {"code": bad.code, "message": f"line {bad.number}: {bad.message}", "line": bad.number}
    return {"id": line_id, "custom_id": bad.custom_id, "response": None, "error": error}


def answered(line: bytes) -> str | None:
    """The custom_id that this line of an output file answers for good.

    None: it does not. It broke off, it is a failure that may pass, or an error line, which the next run writes again.
    """
    try:
        value = json.loads(line)
        status = value["response"]["status_code"]
        is_final = status < 500 and status not in _PASSING
        return value["custom_id"] if is_final and isinstance(value["custom_id"], str) else None
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
