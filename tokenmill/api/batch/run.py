"""Runs the requests of a batch file through the HTTP door, in this process and without HTTP.

So a line is answered exactly as the same body sent to a server. Not responsible for: files (files.py), engines.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from tokenmill.api.batch.lines import BadLine, BatchRequest, answer_line, error_line
from tokenmill.api.errors import encode_json


class Output(Protocol):
    finished: set[str]

    def write(self, line: dict[str, Any]) -> None: ...


@dataclass(slots=True)
class BatchSummary:
    """
    num_skipped    answered by an earlier run
    num_failed     answered with an error, or no request at all
    usd, joules    of the answers of this run
    """

    num_answered: int = 0
    num_failed: int = 0
    num_skipped: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    usd: float = 0.0
    joules: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)

    def fail(self, code: str) -> None:
        self.num_failed += 1
        self.errors[code] = self.errors.get(code, 0) + 1

    def add(self, usage: dict[str, Any]) -> None:
        self.num_answered += 1
        self.num_prompt_tokens += usage.get("prompt_tokens", usage.get("input_tokens", 0))
        self.num_output_tokens += usage.get("completion_tokens", usage.get("output_tokens", 0))
        self.usd += usage["cost"]["usd"]
        self.joules += usage["cost"]["joules"]


async def run_batch(
    app: ASGIApp,
    lines: Iterator[BatchRequest | BadLine],
    output: Output,
    *,
    num_in_flight: int,
    on_done: Callable[[], None] = lambda: None,
) -> BatchSummary:
    """Answer every line that `output` has no answer for; as they finish, not in order.

    num_in_flight  requests that run at the same time: enough to fill the engine's steps
    """
    summary = BatchSummary()

    async def work() -> None:
        for line in lines:  # shared: each takes the next one
            await _one(app, line, output, summary)
            on_done()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(num_in_flight):
            group.create_task(work())
    return summary


async def _one(app: ASGIApp, line: BatchRequest | BadLine, output: Output, summary: BatchSummary) -> None:
    line_id = f"batch_req_{uuid.uuid4().hex}"
    if isinstance(line, BadLine):
        output.write(error_line(line_id, line))
        summary.fail(line.code)
    elif line.custom_id in output.finished:
        summary.num_skipped += 1
    else:
        status, body = await call(app, line.url, encode_json(line.body), line_id)
        output.write(answer_line(line_id, line, status, line_id, body))
        if status == 200:
            summary.add(body["usage"])
        else:
            summary.fail(body["error"]["code"])


async def call(app: ASGIApp, path: str, body: bytes, request_id: str) -> tuple[int, Any]:
    """One POST to `app`, which must answer in JSON: status and answer."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
    }
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    status, data = 0, bytearray()

    async def receive() -> Message:
        if unread:
            return unread.pop()
        return await asyncio.get_running_loop().create_future()  # this client never leaves

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            data.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, json.loads(data)
