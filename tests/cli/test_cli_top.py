"""`tokenmill top` against a real server."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from rich.console import Console

from tests.api.fakes import FakeDispatcher
from tests.api.live import LiveServer
from tokenmill.api.config import ApiConfig
from tokenmill.cli.main import main
from tokenmill.cli.watch import News, screen, watch


def _looks(url: str, count: int, key: str | None = None) -> list[News]:
    async def collect() -> list[News]:
        return [look async for look in watch(url, key, count)]

    return asyncio.run(collect())


def test_looks_are_of_the_server() -> None:
    with LiveServer(FakeDispatcher(), ApiConfig(port=0, api_key="secret")) as server:
        body = {"model": "bytes", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
        server.post("/v1/chat/completions", body, headers={"authorization": "Bearer secret"})
        first, second = _looks(server.url, 2, "secret")
    assert first["workers"][0]["model"] == "bytes"
    assert second["point"]["output_tokens"] == 4
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen(second, server.url))
    text = console.export_text()
    assert "bytes" in text and "$ / M tokens now" in text and "ready" in text


def test_one_object_per_look(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveServer(FakeDispatcher()) as server:
        assert main(["top", "--url", server.url, "--count", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["point"] is None


@pytest.mark.parametrize("key", [None, "wrong"])
def test_no_server_or_no_key(capsys: pytest.CaptureFixture[str], key: str | None) -> None:
    if key is None:
        assert main(["top", "--url", "http://127.0.0.1:9", "--count", "1"]) == 1
        assert "no tokenmill server to watch at http://127.0.0.1:9" in capsys.readouterr().err
        return
    with LiveServer(FakeDispatcher(), ApiConfig(port=0, api_key="secret")) as server:
        assert main(["top", "--url", server.url, "--api-key", key, "--count", "1"]) == 1
    assert "answers with 401" in capsys.readouterr().err
