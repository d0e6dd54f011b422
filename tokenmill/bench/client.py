"""Requests of a load to an OpenAI-compatible server, timed as a user sees them. Not responsible for: when to send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from tokenmill.bench.connection import ConnectionLost, Pool
from tokenmill.bench.events import Answer, refusal
from tokenmill.bench.target import ROUTES, Prompt, Target
from tokenmill.core.errors import SetupError
from tokenmill.workloads.request_record import RequestRecord, with_checked_clock

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Client:
    pool: Pool
    now: Callable[[], float]

    async def send(
        self,
        target: Target,
        prompt: Prompt,
        osl: int,
        *,
        isl: int | None = None,
        session_id: str | None = None,
        parent_session_id: str | None = None,
    ) -> tuple[RequestRecord, str]:
        """One streamed request to its end: the record and the answer's text. A failure is a record with `error`.

        isl  tokens asked for; they stand in when the server does not count
        """
        named = {"X-Session-ID": session_id, "X-Parent-Session-ID": parent_session_id}
        headers = target.headers | {name: value for name, value in named.items() if value}
        path = urlsplit(target.address(ROUTES[target.endpoint])).path
        body = _encode(target.body(prompt, osl))
        answer, refused = Answer(self.now), bytearray()

        def on_data(status: int, data: bytes) -> None:
            if status == 200:
                answer.feed(data)
            else:
                refused.extend(data)

        sent_s = self.now()
        try:
            status = await self.pool.request("POST", path, headers, body, on_data)
            error = refusal(status, bytes(refused)) if status != 200 else None
        except (ConnectionLost, OSError, TimeoutError) as failure:
            error = _failure(failure)
        return _record(answer, sent_s, self.now(), error, isl), "".join(answer.texts)

    async def get(self, target: Target, route: str) -> tuple[int, bytes]:
        """SetupError when the server cannot be reached."""
        body = bytearray()
        path = urlsplit(target.address(route)).path
        try:
            status = await self.pool.request("GET", path, target.headers, b"", lambda _, data: body.extend(data))
        except (ConnectionLost, OSError, TimeoutError) as error:
            raise SetupError(
                f"{target.address(route)} cannot be reached ({_failure(error)}): start the server and check --url"
            ) from None
        return status, bytes(body)

    async def first_model(self, target: Target) -> str:
        """The first model that the server lists; SetupError when it cannot be asked."""
        status, body = await self.get(target, "/v1/models")
        try:
            return str(msgspec.json.decode(body)["data"][0]["id"])
        except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
            raise SetupError(
                f"{target.address('/v1/models')} does not list a model (status {status}): "
                "check --url and --api-key, or name the model with --model"
            ) from None


@asynccontextmanager
async def open_client(url: str, now: Callable[[], float], *, read_timeout_s: float = 600.0) -> AsyncIterator[Client]:
    pool = Pool(url, read_timeout_s=read_timeout_s)
    try:
        yield Client(pool, now)
    finally:
        pool.close()
        await asyncio.sleep(0)  # lets aborted transports close


def _failure(error: Exception) -> str:
    """The kind and the system's short reason, without addresses, so that equal failures can be counted."""
    if isinstance(error, ConnectionLost):
        return f"ConnectionLost: {error}"
    strerror = getattr(error, "strerror", None)
    if isinstance(error, ConnectionRefusedError) or (isinstance(strerror, str) and "Connect call failed" in strerror):
        return "ConnectionRefusedError: connection refused"
    return f"{type(error).__name__}: {strerror or error}".rstrip(": ")


def _record(answer: Answer, sent_s: float, end_s: float, error: str | None, isl: int | None) -> RequestRecord:
    error = error or answer.error
    if error is None and answer.finish_reason is None:
        error = "the stream ended without a finish reason"
    usage = answer.usage
    num_output = usage.get("completion_tokens") or len(answer.chunk_s)
    if not answer.chunk_s and num_output and answer.finish_s is not None:  # all tokens were invisible
        answer.chunk_s.append(answer.finish_s)
    details, cost = usage.get("prompt_tokens_details") or {}, usage.get("cost") or {}
    return with_checked_clock(
        RequestRecord(
            sent_s=sent_s,
            end_s=end_s,
            chunk_s=tuple(answer.chunk_s),
            num_prompt_tokens=usage.get("prompt_tokens") or (0 if usage else isl or 0),
            num_cached_tokens=details.get("cached_tokens") or 0,
            num_output_tokens=num_output,
            finish_reason=answer.finish_reason,
            usd=cost.get("usd") if isinstance(cost, dict) else None,
            joules=cost.get("joules") if isinstance(cost, dict) else None,
            error=error,
            has_usage=bool(usage),
        )
    )
