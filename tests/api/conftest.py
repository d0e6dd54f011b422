"""One live server per module with the byte tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.fakes import FakeDispatcher
from tests.api.live import LiveServer
from tests.api.servers import make_server, server

__all__ = ["make_server", "server", "shared_server"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[LiveServer]:
    with LiveServer(FakeDispatcher()) as server:
        yield server
