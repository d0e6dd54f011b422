"""An OpenAI-like server without a model: one token per stream and tick. A load generator's cost is measured
against it. Run as `python -m tokenmill.bench.null_server [--tick-ms 5]`; prints its address, stops with its stdin.

Not responsible for: being right about anything but counts and times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from tokenmill.bench.aio import run_async

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MODELS = {"object": "list", "data": [{"id": "null-model", "object": "model", "max_model_len": 1 << 20}]}


def _event(value: Any) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chunk(is_chat: bool, reason: str | None) -> bytes:
    """As large as a real server's."""
    output: dict[str, Any] = {"delta": {"content": " word"}} if is_chat else {"text": " word"}
    choice = {"index": 0, "logprobs": None, "finish_reason": reason, **output}
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return _event(
        {"id": "cmpl-0123456789abcdef", "object": kind, "created": 0, "model": "null-model", "choices": [choice]}
    )


_CHUNKS = {(is_chat, reason): _chunk(is_chat, reason) for is_chat in (False, True) for reason in (None, "length")}
_END = _event(b"[DONE]") + b"0\r\n\r\n"


class _Stream:
    """Paces itself: the first token comes one tick after the request, each other one tick after the one before."""

    def __init__(
        self, transport: asyncio.Transport, tick_s: float, is_chat: bool, num_prompt: int, num_output: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._tick_s = tick_s
        self._is_chat = is_chat
        self._num_prompt = num_prompt
        self._num_output = num_output
        self._num_left = num_output
        self._due_s = self._loop.time()
        self._wait()

    def _wait(self) -> None:
        self._due_s += self._tick_s
        self._loop.call_at(self._due_s, self._step)

    def _step(self) -> None:
        if self._transport.is_closing():
            return
        self._num_left -= 1
        reason = None if self._num_left else "length"
        data = _CHUNKS[self._is_chat, reason]
        if reason:
            usage = {"prompt_tokens": self._num_prompt, "completion_tokens": self._num_output}
            usage |= {"total_tokens": self._num_prompt + self._num_output}
            data += _event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": 0}}}) + _END
        self._transport.write(data)
        if not reason:
            self._wait()


class _Door(asyncio.Protocol):
    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        assert self._transport is not None
        path, body = urlsplit(self._url).path.decode(), bytes(self._body)
        self._url, self._body = b"", bytearray()
        if path.endswith("/completions"):
            self._transport.write(_STREAM)
            _stream(self._transport, self._tick_s, json.loads(body))
            return
        value, status = (
            (_MODELS, b"200 OK") if path in ("/v1/models", "/health") else ({"error": "no such route"}, b"404 No")
        )
        data = json.dumps(value).encode()
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(data))
        self._transport.write(head + data)


def _stream(transport: asyncio.Transport, tick_s: float, body: dict[str, Any]) -> _Stream:
    messages = body.get("messages")
    prompt = " ".join(str(message["content"]) for message in messages) if messages else body["prompt"]
    num_prompt = len(prompt) if isinstance(prompt, list) else len(prompt.split())
    num_output = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
    return _Stream(transport, tick_s, messages is not None, num_prompt, num_output)


async def _serve(tick_s: float, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Door(tick_s), "127.0.0.1", port)
    print(f"null server ready: http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # its end is ours
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tick-ms", type=float, default=5.0, help="between two tokens of a stream")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    run_async(_serve(args.tick_ms / 1e3, args.port))


if __name__ == "__main__":
    main()
