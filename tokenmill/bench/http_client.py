"""One streamed request to an OpenAI-compatible server, timed as a client sees it. Not responsible for: when to send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from tokenmill.core.errors import SetupError
from tokenmill.workloads.request_metrics import RequestRecord

Prompt = str | list[int]
_ROUTES = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Target:
    """
    url         of the server, with or without /v1
    endpoint    which route to load
    ignore_eos  send this extension (vLLM, tokenmill), so that every answer has the asked length
    """

    url: str
    model: str
    endpoint: Literal["completions", "chat"] = "completions"
    api_key: str | None = None
    ignore_eos: bool = True

    def address(self, route: str) -> str:
        return self.url.rstrip("/").removesuffix("/v1") + route

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


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


async def send(
    session: aiohttp.ClientSession, target: Target, prompt: Prompt, osl: int, now: Callable[[], float]
) -> RequestRecord:
    """Send one streaming request and follow it to its end; a failure is a record with `error`, never an exception."""
    heard = _Heard(sent_s=now())
    try:
        async with session.post(
            target.address(_ROUTES[target.endpoint]), json=_body(target, prompt, osl), headers=target.headers
        ) as response:
            if response.status != 200:
                heard.error = await _refusal(response)
            else:
                async for data in read_events(response.content):
                    heard.take(json.loads(data), now())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        heard.error = f"{type(error).__name__}: {error}".rstrip(": ")
    return heard.record(now())


def _body(target: Target, prompt: Prompt, osl: int) -> dict[str, Any]:
    body: dict[str, Any] = {"model": target.model, "max_tokens": osl, "temperature": 0.0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if target.ignore_eos:
        body["ignore_eos"] = True
    if target.endpoint == "completions":
        return body | {"prompt": prompt}
    return body | {"messages": [{"role": "user", "content": prompt}]}


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


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """Short and the same for equal refusals, so that they can be counted."""
    text = await response.text(errors="replace")
    try:
        error = json.loads(text)["error"]
        return f"{response.status} {error.get('code') or error.get('type')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{response.status} {text[:60]}"


@dataclass(slots=True)
class _Heard:
    """What has arrived of one answer so far."""

    sent_s: float
    chunk_s: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    finish_s: float | None = None
    error: str | None = None

    def take(self, chunk: dict[str, Any], now_s: float) -> None:
        if "error" in chunk:
            error = chunk["error"]
            self.error = f"stream {error.get('code') or error.get('type')}" if isinstance(error, dict) else str(error)
            return
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            if _carries_output(choice):
                self.chunk_s.append(now_s)
            if choice.get("finish_reason"):
                self.finish_reason, self.finish_s = choice["finish_reason"], now_s

    def record(self, now_s: float) -> RequestRecord:
        if self.error is None and self.finish_reason is None:
            self.error = "the stream ended without a finish reason"
        num_output = self.usage.get("completion_tokens") or len(self.chunk_s)
        if not self.chunk_s and num_output and self.finish_s is not None:  # all tokens were invisible
            self.chunk_s.append(self.finish_s)
        details, cost = self.usage.get("prompt_tokens_details") or {}, self.usage.get("cost") or {}
        return RequestRecord(
            sent_s=self.sent_s,
            end_s=now_s,
            chunk_s=tuple(self.chunk_s),
            num_prompt_tokens=self.usage.get("prompt_tokens") or 0,
            num_cached_tokens=details.get("cached_tokens") or 0,
            num_output_tokens=num_output,
            finish_reason=self.finish_reason,
            usd=cost.get("usd") if isinstance(cost, dict) else None,
            joules=cost.get("joules") if isinstance(cost, dict) else None,
            error=self.error,
        )


def _carries_output(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


def run_async(coroutine: Any) -> Any:
    """asyncio.run with uvloop where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)
