"""Clients that leave, stall, are slow or too big; failures on our side; requests while the server goes down."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.api.fakes import FakeDispatcher, card
from tests.api.live import LiveServer, chat_body, parse_events, post_bytes, until_closed
from tokenmill.api.config import ApiConfig, LimitsConfig
from tokenmill.core.errors import InternalError, OverloadedError, UnavailableError, WorkerLostError
from tokenmill.core.request import FinishReason, Request, TokenDelta

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def request_bytes(path: str, **fields: Any) -> bytes:
    body = chat_body(**fields) if path == CHAT else {"model": "bytes", "prompt": "hi", **fields}
    return post_bytes(path, json.dumps(body).encode())


# -- disconnects --


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_aborts_within_a_step(server: LiveServer, path: str, stream: bool) -> None:
    dispatcher = server.dispatcher
    dispatcher.pause_s = 0.005
    with server.raw() as connection:
        connection.sendall(
            request_bytes(path, stream=stream, n=2, max_tokens=1000, logprobs=1 if path != CHAT else None)
        )
        wait_for(lambda: len(dispatcher.running) == 2 and dispatcher.num_tokens_made > 0)
    wait_for(lambda: not dispatcher.running)
    made = dispatcher.num_tokens_made
    assert len(dispatcher.aborted) == 2
    time.sleep(0.02)  # four steps of the fake engine
    assert dispatcher.num_tokens_made == made, "nothing is generated for a client that left"
    wait_for(lambda: server.context.lifecycle.num_inside == 0)


def test_disconnect_before_the_first_token(server: LiveServer) -> None:
    server.dispatcher.is_gate_closed = True
    for stream in (False, True):
        with server.raw() as connection:
            connection.sendall(request_bytes(COMPLETION, stream=stream))
            wait_for(lambda: len(server.dispatcher.running) == 1)
        wait_for(lambda: not server.dispatcher.running)


def test_disconnect_in_the_body(server: LiveServer) -> None:
    """A client that leaves before its body is complete disturbs nobody."""
    whole = request_bytes(COMPLETION)
    with server.raw() as connection:
        connection.sendall(whole[:-5])
    assert server.complete(max_tokens=1).status_code == 200
    wait_for(lambda: server.context.lifecycle.num_inside == 0)
    assert len(server.dispatcher.seen) == 1


def test_random_cancels(server: LiveServer) -> None:
    """S61: clients leave at random moments, over stream x logprobs x n x stop; nothing is left behind."""
    dispatcher = server.dispatcher
    dispatcher.pause_s = 0.0005
    rng = random.Random(7)

    def one(seed: int) -> None:
        mine = random.Random(seed)
        path = mine.choice([CHAT, COMPLETION])
        fields: dict[str, Any] = {
            "stream": mine.random() < 0.5,
            "n": mine.randint(1, 4),
            "max_tokens": 60,
            "seed": seed,
        }
        if mine.random() < 0.5:
            fields |= {"logprobs": True, "top_logprobs": 3} if path == CHAT else {"logprobs": 3}
        if mine.random() < 0.3:
            fields["stop"] = "nop"
        with server.raw() as connection, suppress(ConnectionError):
            connection.sendall(request_bytes(path, **fields))
            connection.settimeout(mine.random() * 0.05)
            with suppress(TimeoutError):
                for _ in range(mine.randint(0, 5)):
                    connection.recv(300)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, [rng.randrange(10**6) for _ in range(80)]))
    wait_for(lambda: not dispatcher.running and server.context.lifecycle.num_inside == 0)
    assert server.complete(max_tokens=3, seed=0).json()["choices"][0]["text"] == "abc"
    assert dispatcher.aborted, "some did leave early"


# -- our failures --


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OverloadedError("full: wait"), 429, "overloaded"),
        (WorkerLostError("died: again"), 503, "worker_lost"),
        (UnavailableError("starting: wait"), 503, "unavailable"),
        (InternalError("broken: report it"), 500, "internal_error"),
        (RuntimeError("secret detail"), 500, "internal_error"),
        (TimeoutError("secret detail"), 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_first_token(
    server: LiveServer, error: Exception, status: int, code: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They have their own status, streamed or not; an unexpected one shows no detail but is logged with its id."""
    server.dispatcher.error = error
    response = server.chat(stream=stream)
    body = response.json()["error"]
    assert response.status_code == status and body["code"] == code
    is_retryable = status in (429, 503)
    assert body.get("retryable", False) is is_retryable
    assert ("retry-after" in response.headers) is is_retryable
    assert "secret detail" not in response.text
    if isinstance(error, RuntimeError | TimeoutError):
        request_id = response.headers["x-request-id"]
        assert request_id in body["message"]
        assert any(request_id in record.getMessage() and record.exc_info for record in caplog.records)


@pytest.mark.parametrize("error", [WorkerLostError("died: again"), RuntimeError("secret detail")])
def test_errors_in_mid_stream(server: LiveServer, error: Exception) -> None:
    """One error event ends the stream; what came before it was sent, and the other choices are aborted."""
    server.dispatcher.error, server.dispatcher.fail_at = error, 4
    response = server.complete(stream=True, seed=0, n=2, max_tokens=50)
    assert response.status_code == 200
    *events, last = [json.loads(event) for event in parse_events(response.text)]
    assert set(last) == {"error"}
    assert last["error"]["code"] == ("worker_lost" if isinstance(error, WorkerLostError) else "internal_error")
    assert "secret detail" not in response.text
    assert "".join(event["choices"][0]["text"] for event in events if event["choices"][0]["index"] == 0) == "abcd"
    wait_for(lambda: not server.dispatcher.running)


@pytest.mark.parametrize(
    ("last", "status", "code"),
    [
        ({"finish_reason": FinishReason.ERROR, "error": ("worker_lost", "died")}, 503, "worker_lost"),
        ({"finish_reason": FinishReason.ERROR, "error": ("no such code", "?")}, 500, "internal_error"),
        ({"finish_reason": FinishReason.ERROR}, 500, "internal_error"),
        ({"finish_reason": FinishReason.ABORT}, 503, "unavailable"),
        ({}, 500, "internal_error"),
    ],
)
def test_ends_that_are_no_ends(server: LiveServer, last: dict[str, Any], status: int, code: str) -> None:
    """A delta that carries an error, an abort from outside, an iterator that just stops: all become typed errors."""

    async def broken(request: Request) -> AsyncGenerator[TokenDelta, None]:
        yield TokenDelta(request_id=request.request_id, token_ids=(97,))
        if last:
            yield TokenDelta(request_id=request.request_id, **last)

    generate, server.dispatcher.generate = server.dispatcher.generate, broken  # type: ignore[method-assign]
    try:
        response = server.complete()
    finally:
        server.dispatcher.generate = generate  # type: ignore[method-assign]
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_error_of_a_whole_answer(server: LiveServer) -> None:
    server.dispatcher.error, server.dispatcher.fail_at = WorkerLostError("died: again"), 4
    assert server.complete(max_tokens=50).status_code == 503


# -- limits --


def test_request_time_limit(make_server: Callable[..., LiveServer]) -> None:
    """504 before the first token, an error event after it; a stream is kept alive with comments meanwhile."""
    limits = LimitsConfig(request_timeout_s=0.3)
    server = make_server(ApiConfig(port=0, keep_alive_s=0.05, limits=limits), FakeDispatcher())
    server.dispatcher.is_gate_closed = True
    whole = server.complete()
    assert whole.status_code == 504 and whole.json()["error"]["code"] == "deadline_exceeded"
    assert whole.headers["retry-after"]
    streamed = server.complete(stream=True)
    assert streamed.status_code == 200
    assert streamed.text.startswith(": keep-alive\n\n")
    assert 2 <= streamed.text.count(": keep-alive") <= 6
    (event,) = parse_events(streamed.text)
    assert json.loads(event)["error"]["code"] == "deadline_exceeded"
    wait_for(lambda: not server.dispatcher.running)


def test_slow_headers_and_bodies(make_server: Callable[..., LiveServer]) -> None:
    """408 for headers and for bodies that do not come; also for nothing at all."""
    limits = LimitsConfig(header_timeout_s=0.1, body_timeout_s=0.1)
    server = make_server(ApiConfig(port=0, limits=limits))
    whole = request_bytes(COMPLETION)
    for part in (b"", b"POST /v1/comp", whole[:-4]):
        with server.raw() as connection:
            connection.sendall(part)
            answer = until_closed(connection)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert server.complete(max_tokens=1).status_code == 200


def test_a_second_request_has_its_own_header_deadline(make_server: Callable[..., LiveServer]) -> None:
    """The wait between two requests of a connection is not counted; the second one's headers are."""
    server = make_server(ApiConfig(port=0, limits=LimitsConfig(header_timeout_s=0.15)))
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    for _ in range(2):
        connection.request("GET", "/live")
        assert connection.getresponse().read()
        time.sleep(0.2)
    connection.sock.sendall(b"POST /v1")
    assert until_closed(connection.sock).startswith(b"HTTP/1.1 408")
    connection.close()


@pytest.mark.parametrize("junk", [b"x: " + b"y" * 3000, b"\r\n".join(b"h%d: %s" % (i, b"z" * 90) for i in range(30))])
def test_large_headers(make_server: Callable[..., LiveServer], junk: bytes) -> None:
    server = make_server(ApiConfig(port=0, limits=LimitsConfig(max_header_bytes=2000)))
    for head in (b"GET /live HTTP/1.1\r\nhost: x\r\n" + junk + b"\r\n\r\n", b"GET /live?" + junk * 2):
        with server.raw() as connection:
            with suppress(ConnectionError):
                connection.sendall(head)
            answer = until_closed(connection)
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), answer
    assert server.client.get("/live").status_code == 200


def test_a_header_line_that_does_not_end(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, limits=LimitsConfig(max_header_bytes=2000)))
    with server.raw() as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nx: ")
        with suppress(ConnectionError):
            for _ in range(50):
                connection.sendall(b"y" * 1000)
                time.sleep(0.001)
        with suppress(ConnectionError):
            assert until_closed(connection).startswith(b"HTTP/1.1 431")
    assert server.client.get("/live").status_code == 200


def test_a_reader_that_does_not_read(make_server: Callable[..., LiveServer]) -> None:
    """The socket fills up; the queue between engine and client stays bounded; leaving ends it."""
    server = make_server(None, FakeDispatcher(card(max_model_len=10**6, kv_capacity_tokens=10**6)))
    with server.raw() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request_bytes(COMPLETION, stream=True, max_tokens=10**5, logprobs=20))
        seen = -1

        def is_stuck() -> bool:
            nonlocal seen
            before, seen = seen, server.dispatcher.num_tokens_made
            time.sleep(0.1)
            return before == seen > 0

        wait_for(is_stuck, 30)
        assert server.dispatcher.num_tokens_made < 10**5
    wait_for(lambda: not server.dispatcher.running)


# -- ids and draining --


def test_request_ids(server: LiveServer) -> None:
    """The client's id is echoed on answers, streams and errors; without one, or with a bad one, there is a new one."""
    given = {"x-request-id": "trace-7.a"}
    for body in (chat_body(max_tokens=1), chat_body(max_tokens=1, stream=True), {"messages": 5}):
        assert server.client.post(CHAT, json=body, headers=given).headers["x-request-id"] == "trace-7.a"
    assert server.client.get("/nope", headers=given).headers["x-request-id"] == "trace-7.a"
    made = {server.client.get("/live").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in (b"a b", b"x" * 129, b"\xff", b"a\tb"):
        assert server.client.get("/live", headers={b"x-request-id": bad}).headers["x-request-id"].isalnum()


def test_equal_request_ids_do_not_collide(server: LiveServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda _: server.client.post(CHAT, json=chat_body(max_tokens=5), headers={"x-request-id": "same"}), range(8)
        )
        assert {answer.status_code for answer in answers} == {200}


def test_draining(make_server: Callable[..., LiveServer]) -> None:
    """What runs is finished; new requests get a retryable 503; /ready says why."""
    server = make_server(None, FakeDispatcher())
    server.dispatcher.is_gate_closed = True
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.complete, max_tokens=3, seed=0)
        wait_for(lambda: len(server.dispatcher.running) == 1)
        server.context.lifecycle.is_draining = True
        for path in (CHAT, COMPLETION):
            refused = server.post(path, chat_body() | {"prompt": "x"})
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "unavailable"
        ready = server.client.get("/ready")
        assert ready.status_code == 503 and "draining" in ready.json()["reasons"][0]
        assert server.client.get("/live").status_code == 200
        server.dispatcher.is_gate_closed = False
        assert running.result().json()["choices"][0]["text"] == "abc"
