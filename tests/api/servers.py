"""Fixtures over a module's live server (`shared_server` of each conftest): its dispatcher's knobs are reset for every
test. Also servers with settings or models of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.api.fakes import FakeDispatcher, alphabet
from tests.api.live import LiveServer
from tokenmill.api.config import ApiConfig


@pytest.fixture
def server(shared_server: LiveServer) -> Iterator[LiveServer]:
    yield shared_server
    dispatcher = shared_server.dispatcher
    dispatcher.script, dispatcher.cut, dispatcher.error, dispatcher.fail_at = alphabet, None, None, None
    dispatcher.is_gate_closed, dispatcher.pause_s, dispatcher.unhealthy, dispatcher.is_announced = False, 0.0, (), True
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
