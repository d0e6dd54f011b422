"""A batch through the door without HTTP: the same answers as over HTTP, a line for every line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.api.fakes import RATE, FakeDispatcher, card
from tests.api.live import LiveServer
from tokenmill.api.app import create_app
from tokenmill.api.batch.lines import read_requests
from tokenmill.api.batch.run import BatchSummary, call, run_batch
from tokenmill.api.config import ApiConfig
from tokenmill.core.errors import WorkerLostError

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


class Output:
    def __init__(self, finished: set[str] | None = None) -> None:
        self.finished = finished or set()
        self.lines: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        self.lines.append(json.loads(json.dumps(line)))


def request(custom_id: str, url: str = COMPLETION, **body: Any) -> bytes:
    key = {CHAT: "messages", COMPLETION: "prompt", RESPONSES: "input"}[url]
    prompt: Any = [{"role": "user", "content": "hi"}] if url == CHAT else "hi"
    limit = "max_output_tokens" if url == RESPONSES else "max_tokens"
    value = {"custom_id": custom_id, "url": url, "body": {"model": "bytes", key: prompt, limit: 3, "seed": 1} | body}
    return json.dumps(value).encode()


def run(dispatcher: FakeDispatcher, lines: list[bytes], output: Output, num_in_flight: int = 4) -> BatchSummary:
    app = create_app(dispatcher, ApiConfig(), rate=RATE)
    return asyncio.run(run_batch(app, read_requests(lines, 10**6), output, num_in_flight=num_in_flight))


def test_every_line_is_answered_once_and_as_over_http() -> None:
    lines = [request("a", CHAT), request("b"), request("c", RESPONSES, store=False), b"{", request("d", max_tokens=-1)]
    output = Output()
    summary = run(FakeDispatcher(), lines, output)
    assert (summary.num_answered, summary.num_failed) == (3, 2)
    assert summary.errors == {"invalid_json_line": 1, "invalid_request": 1}
    by_id = {line["custom_id"]: line for line in output.lines}
    assert by_id.keys() == {"a", "b", "c", "d", None}
    assert by_id[None]["response"] is None and by_id[None]["error"]["line"] == 4
    assert by_id["d"]["response"]["status_code"] == 400
    assert by_id["d"]["response"]["body"]["error"]["param"] == "max_tokens"
    with LiveServer(FakeDispatcher()) as server:
        for custom_id, line in zip("abc", lines, strict=False):
            sent = json.loads(line)
            over_http = server.post(sent["url"], sent["body"]).json()
            mine = by_id[custom_id]["response"]
            assert mine["status_code"] == 200 and by_id[custom_id]["error"] is None
            assert mine["body"].get("choices") == over_http.get("choices")
            assert text_of(mine["body"]) == text_of(over_http)
            assert mine["body"].keys() == over_http.keys()
    assert summary.num_output_tokens == 9 and summary.usd > 0 and summary.joules > 0


def text_of(body: dict[str, Any]) -> Any:
    return [part["text"] for item in body.get("output", []) for part in item["content"]]


def test_what_is_finished_is_skipped() -> None:
    output = Output({"b"})
    dispatcher = FakeDispatcher()
    summary = run(dispatcher, [request("a"), request("b"), request("c")], output)
    assert summary.num_skipped == 1 and sorted(line["custom_id"] for line in output.lines) == ["a", "c"]
    assert len(dispatcher.seen) == 2


@pytest.mark.parametrize("num_in_flight", [1, 3, 20])
def test_so_many_run_at_a_time(num_in_flight: int) -> None:
    dispatcher, most = FakeDispatcher(card(max_num_seqs=64)), 0
    dispatcher.pause_s = 0.001

    def watch(request: Any) -> Any:
        nonlocal most
        most = max(most, len(dispatcher.running))
        return iter(range(97, 120))

    dispatcher.script = watch
    summary = run(dispatcher, [request(str(i)) for i in range(30)], Output(), num_in_flight)
    assert summary.num_answered == 30 and 1 <= most <= num_in_flight


def test_a_failure_of_one_request_is_its_own() -> None:
    dispatcher = FakeDispatcher()
    dispatcher.error, dispatcher.fail_at = WorkerLostError("the worker died"), 2
    output = Output()
    summary = run(dispatcher, [request("a"), request("b", max_tokens=1)], output)
    assert summary.errors == {"worker_lost": 1} and summary.num_answered == 1
    assert {line["custom_id"]: line["response"]["status_code"] for line in output.lines} == {"a": 503, "b": 200}


def test_call_reads_any_json_answer() -> None:
    app = create_app(FakeDispatcher(), ApiConfig(), rate=RATE)
    status, body = asyncio.run(call(app, "/nowhere", b"{}", "r"))
    assert status == 404 and body["error"]["code"] == "not_found"
