"""The live page without a browser: what is served, to whom, and the figures of its stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.api.fakes import FakeDispatcher, card
from tests.api.live import LiveServer
from tokenmill.api.config import ApiConfig
from tokenmill.api.live_page.feed import MAX_POINTS, Feed
from tokenmill.api.request_metrics import RequestMetrics
from tokenmill.core.clock import ManualClock


def _news(server: LiveServer, count: int) -> list[dict]:
    with server.client.stream("GET", "/live/events") as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        return [json.loads(next(lines).removeprefix("data: ")) for _ in range(count)]


def test_the_page_names_models_and_escapes_them(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(dispatcher=FakeDispatcher(card("a<b"), card("other")))
    page = server.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "<option>a&lt;b</option><option>other</option>" in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in ("uPlot.min.css", "uPlot.iife.min.js", "report.css", "live.css", "live.js"):
        assert f"/assets/{name}" in page.text
        assert server.client.get(f"/assets/{name}").status_code == 200
    assert server.client.get("/assets/../door.py").status_code == 404
    assert server.client.get("/assets/pareto.html").status_code == 404


def test_with_a_key_the_page_is_open_and_empty(make_server: Callable[..., LiveServer]) -> None:
    server = make_server(ApiConfig(port=0, api_key="secret"), FakeDispatcher(card("hidden-name")))
    page = server.client.get("/")
    assert page.status_code == 200 and "hidden-name" not in page.text
    assert server.client.get("/assets/live.js").status_code == 200
    assert server.client.get("/live/events").status_code == 401


def test_the_stream_begins_with_everything_kept(server: LiveServer) -> None:
    server.chat("hi", max_tokens=8)
    first, second = _news(server, 2)
    assert first["interval_s"] > 0 and [w["state"] for w in first["workers"]] == ["ready"]
    assert "interval_s" not in second and len(second["points"]) == 1
    assert second["points"][0]["usd"] > 0 and second["points"][0]["ttft_s"]["p50"] > 0


def test_a_stopping_server_lets_its_watchers_go(make_server: Callable[..., LiveServer]) -> None:
    server = make_server()
    with server.client.stream("GET", "/live/events") as response:
        lines = response.iter_lines()
        next(lines)
        server.context.lifecycle.is_draining = True
        assert list(lines)[-1] == ""  # it ended by itself, whole


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_points_are_rates_between_looks(clock: ManualClock) -> None:
    dispatcher = FakeDispatcher()
    feed = Feed(dispatcher, RequestMetrics(), clock)
    feed.tick()
    assert feed.now()["points"] == []  # one look is no rate
    feed.tick()
    assert feed.now()["points"] == []  # no time has passed
    clock.advance(2.0)
    feed.tick()
    (point,) = feed.now()["points"]
    assert point["generation_tok_per_s"] == 0 and point["ttft_s"] is None and point["prefix_hit_share"] is None


def test_only_so_many_points_are_kept(clock: ManualClock) -> None:
    feed = Feed(FakeDispatcher(), RequestMetrics(), clock)
    for _ in range(MAX_POINTS + 5):
        feed.tick()
        clock.advance(1.0)
    points = feed.now()["points"]
    assert len(points) == MAX_POINTS and all(a["at"] <= b["at"] for a, b in pairwise(points))
