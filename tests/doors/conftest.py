"""Live servers with a scripted model that thinks and calls tools, on the byte tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.fakes import FakeDispatcher, card
from tests.api.live import LiveServer
from tests.api.servers import make_server, server

__all__ = ["make_server", "server", "shared_server"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[LiveServer]:
    """It writes as Hermes models do."""
    with LiveServer(FakeDispatcher(card(tool_parser="hermes", reasoning_parser="think"))) as server:
        yield server
