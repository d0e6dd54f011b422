"""A real uvicorn on a free port in a thread, and the little clients that tests talk to it with."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn

from tests.api.fakes import RATE, FakeDispatcher
from tokenmill.api.app import create_app
from tokenmill.api.config import ApiConfig
from tokenmill.api.context import ApiContext
from tokenmill.api.server import _Server, _uvicorn_config, bind


class LiveServer:
    """`with LiveServer(dispatcher) as server: server.post(...)`."""

    def __init__(self, dispatcher: FakeDispatcher, config: ApiConfig | None = None) -> None:
        self.dispatcher = dispatcher
        self.config = config or ApiConfig(port=0)
        self.app = create_app(dispatcher, self.config, rate=RATE)
        self.context: ApiContext = self.app.state.context
        self._listener = bind(self.config)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server = _Server(_uvicorn_config(self.app, self.config))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not stop"

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.client.post(path, json=body, **more)

    def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", chat_body(text, **fields))

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": "bytes", "prompt": prompt, **fields})

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a stream that must end with [DONE]."""
        response = self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = list(parse_events(response.text))
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "bytes", "messages": [{"role": "user", "content": text}], **fields}


def parse_events(text: str) -> Iterator[str]:
    """Data of each event; everything must be an event or a comment."""
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        yield block.removeprefix("data: ")


def post_bytes(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {len(body)}", *headers]
    if not any(line.startswith("content-type") for line in headers):
        lines.append("content-type: application/json")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def until_closed(connection: socket.socket) -> bytes:
    data = b""
    while chunk := connection.recv(65536):
        data += chunk
    return data
