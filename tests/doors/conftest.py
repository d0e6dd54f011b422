"""Live servers with a scripted model that thinks and calls tools, on the byte tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.api.fakes import FakeDispatcher, alphabet, card
from tests.api.live import LiveServer
from tokenmill.api.config import ApiConfig


@pytest.fixture(scope="module")
def shared_server() -> Iterator[LiveServer]:
    """It writes as Hermes models do."""
    with LiveServer(FakeDispatcher(card(tool_parser="hermes", reasoning_parser="think"))) as server:
        yield server


@pytest.fixture
def server(shared_server: LiveServer) -> Iterator[LiveServer]:
    yield shared_server
    dispatcher = shared_server.dispatcher
    dispatcher.script, dispatcher.cut, dispatcher.error, dispatcher.fail_at = alphabet, None, None, None
    dispatcher.pause_s = 0.0
    dispatcher.seen.clear()
    dispatcher.aborted.clear()


@pytest.fixture
def make_server() -> Iterator[Callable[..., LiveServer]]:
    servers: list[LiveServer] = []

    def make(config: ApiConfig | None = None, dispatcher: FakeDispatcher | None = None) -> LiveServer:
        server = LiveServer(dispatcher or FakeDispatcher(), config)
        servers.append(server.__enter__())
        return server

    yield make
    for server in servers:
        server.__exit__(None, None, None)
