"""One HTTP/1.1 connection for load generation: a request out, its body in pieces as they arrive. As lean as it gets,
because the client's own CPU time must not show in what it measures.

Not responsible for: what the pieces mean (client, events), how many connections there are (client).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools

OnData = Callable[[bytes], None]


class ConnectionLost(Exception):
    """The server closed, reset or said nothing for too long. `had_data`: part of an answer had arrived."""

    def __init__(self, reason: str, *, had_data: bool) -> None:
        super().__init__(reason)
        self.had_data = had_data


class Connection(asyncio.Protocol):
    """One request at a time; `is_reusable` says whether another may follow."""

    def __init__(self, read_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_timeout_s = read_timeout_s
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._ended: asyncio.Future[int] | None = None
        self._on_data: OnData = lambda data: None
        self._has_data = False
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_reusable = False

    async def request(self, head: bytes, body: bytes, on_data: OnData) -> int:
        """Send; call `on_data` with each piece of the answer's body; its status at the end, else ConnectionLost."""
        assert self._transport is not None and self._ended is None, "one request at a time"
        self._parser = httptools.HttpResponseParser(self)
        self._on_data, self._has_data, self.is_reusable = on_data, False, False
        self._ended = self._loop.create_future()
        self._heard_s = self._loop.time()
        self._timer = self._loop.call_later(self._read_timeout_s, self._check_silence)
        self._transport.write(head + body)
        try:
            return await self._ended
        finally:
            self._ended = None
            if self._timer is not None:
                self._timer.cancel()

    @property
    def status(self) -> int:
        """Of the answer that is arriving."""
        return self._parser.get_status_code() if self._parser is not None else 0

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if self._ended is None or self._parser is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"the answer is not HTTP ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        self._lose(type(exc).__name__ if exc is not None else "the server closed the connection")

    # Called by the parser.
    def on_body(self, data: bytes) -> None:
        self._has_data = True
        self._on_data(data)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.is_reusable = self._parser.should_keep_alive()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self._parser.get_status_code())

    def _check_silence(self) -> None:
        quiet_s = self._loop.time() - self._heard_s
        if quiet_s >= self._read_timeout_s:
            self._lose(f"nothing arrived for {self._read_timeout_s:g} s")
        else:
            self._timer = self._loop.call_later(self._read_timeout_s - quiet_s, self._check_silence)

    def _lose(self, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionLost(reason, had_data=self._has_data))
        self.close()


class Pool:
    """Connections to one server: as many as requests in flight, kept for the next ones."""

    def __init__(self, url: str, *, connect_timeout_s: float = 30.0, read_timeout_s: float = 600.0) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._idle: list[Connection] = []

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, on_data: Callable[[int, bytes], None]
    ) -> int:
        """The status; `on_data(status, piece)` for the body. A kept connection that proves dead is replaced once."""
        head = self._head(method, path, headers, len(body))
        connection, is_kept = await self._take()
        try:
            return await self._ask(connection, head, body, on_data)
        except ConnectionLost as error:
            if not is_kept or error.had_data:
                raise
        return await self._ask(await self._connect(), head, body, on_data)

    async def _ask(
        self, connection: Connection, head: bytes, body: bytes, on_data: Callable[[int, bytes], None]
    ) -> int:
        try:
            status = await connection.request(head, body, lambda data: on_data(connection.status, data))
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()
        return status

    async def _take(self) -> tuple[Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection, True
        return await self._connect(), False

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(self._read_timeout_s), self._host, self._port, ssl=self._is_tls or None
            )
        return connection

    def _head(self, method: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._netloc}", "Accept: text/event-stream, application/json"]
        if length:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
