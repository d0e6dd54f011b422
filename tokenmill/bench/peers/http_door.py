"""Streams completions from a server on this machine, many at once, at little cost: client and server share the cores.

Works with every server that has OpenAI's /v1/completions and takes token ids. Not responsible for: starting one.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tokenmill.bench.peers.heard import Heard
from tokenmill.core.errors import SetupError

_SILENCE_S = 300.0


@dataclass(slots=True)
class _Stream:
    connection: socket.socket
    pieces: list[bytes] = field(default_factory=list)
    first_s: float | None = None
    last_s: float = 0.0


def stream_all(url: str, model: str, prompts: Sequence[list[int]], osl: int) -> tuple[float, list[Heard]]:
    """(seconds until the last answer is complete, answers in order)."""
    address = urlsplit(url)
    assert address.hostname and address.port, url
    selector = selectors.DefaultSelector()
    began_s = time.perf_counter()
    streams = []
    for prompt in prompts:
        connection = socket.create_connection((address.hostname, address.port), timeout=30)
        connection.sendall(_request(model, prompt, osl))
        connection.setblocking(False)
        streams.append(_Stream(connection))
        selector.register(connection, selectors.EVENT_READ, streams[-1])
    num_open = len(streams)
    while num_open:
        ready = selector.select(_SILENCE_S)
        if not ready:
            raise SetupError(f"{url} was silent for {_SILENCE_S:g} s")
        for key, _ in ready:
            num_open -= _read(key.data, selector, began_s)
    selector.close()
    return time.perf_counter() - began_s, [_answer(stream, url) for stream in streams]


def _request(model: str, prompt: list[int], osl: int) -> bytes:
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": osl, "temperature": 0.0, "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _read(stream: _Stream, selector: selectors.BaseSelector, began_s: float) -> bool:
    """True when the stream has ended."""
    data, now_s = stream.connection.recv(65536), time.perf_counter() - began_s
    if not data:
        selector.unregister(stream.connection)
        stream.connection.close()
        return True
    stream.pieces.append(data)
    num_without_text = data.count(b'"choices":[]') + data.count(b'"choices": []')  # the one with the usage
    if data.count(b"data: {") > num_without_text:
        stream.first_s = now_s if stream.first_s is None else stream.first_s
        stream.last_s = now_s
    return False


def _answer(stream: _Stream, url: str) -> Heard:
    text = b"".join(stream.pieces).decode("utf-8", "replace")
    usages = [line for line in text.splitlines() if line.startswith("data: {") and '"completion_tokens"' in line]
    if stream.first_s is None or not usages:
        raise SetupError(f"{url} did not answer a completion: {text[:400]!r}")
    num_tokens = json.loads(usages[-1].removeprefix("data: "))["usage"]["completion_tokens"]
    return Heard(stream.first_s, stream.last_s, num_tokens)
