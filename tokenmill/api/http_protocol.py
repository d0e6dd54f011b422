"""uvicorn's HTTP/1.1 protocol with two limits it lacks: a deadline and a size for the headers of a request.

Both answer in OpenAI's shape and close the connection. Not responsible for: bodies (body.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tokenmill.api.config import LimitsConfig
from tokenmill.api.errors import HttpError, SlowRequestError, encode_json, error_body
from tokenmill.core.errors import BadRequestError, TokenmillError


class HeadersTooLargeError(HttpError):
    status, code = 431, "headers_too_large"


class LimitedHttpProtocol(HttpToolsProtocol):
    """A connection's first request has its deadline from the connection on, later ones from their first byte on."""

    limits: LimitsConfig = LimitsConfig()
    _deadline: asyncio.TimerHandle | None = None
    _is_in_headers = True
    _is_refused = False
    _num_parsed = 0  # bytes of whole header lines
    _num_received = 0  # bytes of this request that came while its headers were not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self._is_in_headers:
            self._num_received += len(data)
            self._check_size()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_headers = True
        self._num_parsed = self._num_received = 0
        if not self._is_answering():  # a pipelined request may take as long as the answer before it
            self._arm()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._num_parsed += len(url)
        self._check_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._num_parsed += len(name) + len(value)
        self._check_size()

    def on_headers_complete(self) -> None:
        self._disarm()
        self._is_in_headers = False
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequestError("this is not valid HTTP/1.1: send a well-formed request"))

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_size(self) -> None:
        limit = self.limits.max_header_bytes
        if self._num_parsed > limit or self._num_received > 2 * limit:  # received: a line that does not end
            self._refuse(HeadersTooLargeError(f"the headers have more than the {limit} bytes that are possible"))

    def _too_slow(self) -> None:
        limit = self.limits.header_timeout_s
        self._refuse(SlowRequestError(f"the headers were not complete after {limit:g} s: send them at once"))

    def _refuse(self, error: TokenmillError) -> None:
        """Answer outside of the application, which has not seen this request, and hang up."""
        if self._is_refused:
            return
        self._is_refused = True
        if not self._is_answering():  # else the answer on its way would be garbled
            body = encode_json(error_body(error))
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()


def limited_protocol(limits: LimitsConfig) -> type[LimitedHttpProtocol]:
    """uvicorn makes one object per connection from a class, hence a class per set of limits."""
    namespace: dict[str, Any] = {"limits": limits}
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), namespace)
