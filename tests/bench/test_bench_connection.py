"""The lean HTTP client against servers that break off, babble, fall silent, or close what was kept open."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tokenmill.bench.client import Client
from tokenmill.bench.connection import ConnectionLost, Pool
from tokenmill.bench.events import Answer
from tokenmill.bench.target import Target
from tokenmill.core.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":"x","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"text":"y","finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return head + (await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b"")


@asynccontextmanager
async def serving(handler: Handler):
    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def ask(handler: Handler, *, num: int = 1, read_timeout_s: float = 5.0):
    """Records of `num` requests, one after the other, over one pool."""

    async def main():
        async with serving(handler) as url:
            pool = Pool(url, read_timeout_s=read_timeout_s)
            client = Client(pool, asyncio.get_running_loop().time)
            try:
                return [(await client.send(Target(url, "m"), "hi", 2, isl=7))[0] for _ in range(num)]
            finally:
                pool.close()

    return asyncio.run(main())


def test_whole_answer_in_one_byte_pieces() -> None:
    """However the stream is cut, it is the same answer."""

    async def handler(reader, writer):
        await read_request(reader)
        for byte in HEAD + chunk(TOKEN) + chunk(LAST) + chunk(USAGE) + b"0\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()

    (record,) = ask(handler)
    assert record.is_ok and len(record.chunk_s) == 2
    assert (record.num_prompt_tokens, record.num_output_tokens, record.finish_reason) == (3, 2, "stop")


def test_kept_connection_is_used_again_and_replaced_when_dead() -> None:
    connections = []

    async def handler(reader, writer):
        connections.append(writer)
        for _ in range(2):  # two answers, then it hangs up without a word
            await read_request(reader)
            writer.write(HEAD + chunk(LAST) + chunk(USAGE) + b"0\r\n\r\n")
            await writer.drain()

    records = ask(handler, num=5)
    assert all(record.is_ok for record in records) and len(connections) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "ConnectionLost: the server closed the connection"),
        (HEAD + chunk(TOKEN), "ConnectionLost: the server closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "ConnectionLost: the answer is not HTTP"),
        (HEAD + chunk(b"data: {broken\n\n") + b"0\r\n\r\n", "the stream holds an event that is not a completion chunk"),
        (HEAD + chunk(b'data: {"error":{"code":"worker_lost"}}\n\n') + b"0\r\n\r\n", "stream worker_lost"),
        (HEAD + chunk(TOKEN) + b"0\r\n\r\n", "the stream ended without a finish reason"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy", "503 busy"),
        (b'HTTP/1.1 401 No\r\nContent-Length: 29\r\n\r\n{"error":{"code":"bad_key" }} ', "401 bad_key"),
    ],
)
def test_every_way_to_fail_is_a_named_record(answer: bytes, error: str) -> None:
    async def handler(reader, writer):
        await read_request(reader)
        writer.write(answer)
        await writer.drain()

    (record,) = ask(handler)
    assert record.error is not None and record.error.startswith(error)


def test_silence_ends_a_request() -> None:
    async def handler(reader, writer):
        await read_request(reader)
        writer.write(HEAD + chunk(TOKEN))
        await reader.read()  # until the client gives up

    (record,) = ask(handler, read_timeout_s=0.05)
    assert record.error == "ConnectionLost: nothing arrived for 0.05 s"


def test_a_broken_answer_is_not_asked_again() -> None:
    """Only a kept connection that said nothing at all may be retried: else work would be done twice."""
    asked = []

    async def handler(reader, writer):
        for number in range(2):
            asked.append(await read_request(reader))
            writer.write(HEAD + chunk(LAST) + chunk(USAGE) + b"0\r\n\r\n" if number == 0 else HEAD + chunk(TOKEN))
            await writer.drain()

    first, second = ask(handler, num=2)
    assert first.is_ok and second.error is not None and len(asked) == 2


def test_answers_without_usage_stand_on_chunks_and_what_was_asked() -> None:
    answer = Answer(lambda: 1.0)
    answer.feed(b": keep-alive\r\n\r\n" + TOKEN.replace(b"\n", b"\r\n") + LAST)
    assert len(answer.chunk_s) == 2 and answer.texts == ["x", "y"] and answer.usage == {}

    async def handler(reader, writer):
        await read_request(reader)
        writer.write(HEAD + chunk(TOKEN + LAST) + b"0\r\n\r\n")
        await writer.drain()

    (record,) = ask(handler)
    assert record.is_ok and not record.has_usage
    assert (record.num_prompt_tokens, record.num_output_tokens) == (7, 2)


def test_address_must_be_one() -> None:
    with pytest.raises(ConfigError, match=r"--url 'localhost:8000' is not an address"):
        Target("localhost:8000", "m")


def test_lost_connection_tells_whether_anything_had_come() -> None:
    assert not ConnectionLost("x", had_data=False).had_data
