"""Cost over HTTP: whose a request is, what it cost, budgets as clients see them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.fakes import RATE, STEP_S, FakeDispatcher
from tests.api.live import LiveServer
from tokenmill.api.identity import identify
from tokenmill.api.openai_types import CompletionRequest
from tokenmill.core.errors import BadRequestError, BudgetError

STEP_USD = RATE.usd(STEP_S)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(FakeDispatcher()) as server:
        yield server


def identity(headers: dict[str, str], **fields: object) -> tuple[object, ...]:
    body = identify(CompletionRequest(prompt="x", **fields), headers)
    return body.user, body.session_id, body.parent_session_id, body.budget_usd


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, (None, None, None, None)),
        ({"x-tokenmill-tenant": "acme", "x-tokenmill-budget-usd": "0.05"}, ("acme", None, None, 0.05)),
        ({"x-tokenmill-session-id": "s", "x-tokenmill-parent-session-id": "p"}, (None, "s", "p", None)),
        ({"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p"}, (None, "s", "p", None)),
        ({"x-session-id": "s"}, (None, "s", None, None)),
        ({"x-session-id": "s", "x-dynamo-session-id": "d", "x-parent-session-id": "q"}, (None, "d", None, None)),
        ({"x-claude-code-session-id": "c"}, (None, "c", None, None)),
        ({"x-claude-code-session-id": "c", "x-claude-code-agent-id": "a"}, (None, "a", "c", None)),
        (
            {
                "x-claude-code-session-id": "c",
                "x-claude-code-agent-id": "a",
                "x-claude-code-parent-agent-id": "b",
            },
            (None, "a", "b", None),
        ),
        ({"thread-id": "t", "x-codex-parent-thread-id": "u"}, (None, "t", "u", None)),
    ],
)
def test_headers_say_whose_it_is(headers: dict[str, str], expected: tuple[object, ...]) -> None:
    assert identity(headers) == expected


def test_fields_say_it_too_and_headers_win() -> None:
    fields = {"user": "u", "session_id": "f", "parent_session_id": "g", "budget_usd": 1.0}
    assert identity({}, **fields) == ("u", "f", "g", 1.0)
    assert identity({"x-session-id": "h", "x-tokenmill-tenant": "t"}, **fields) == ("t", "h", "g", 1.0)


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-tokenmill-budget-usd": "much"}, {}),
        ({"x-tokenmill-budget-usd": "-1"}, {}),
        ({"x-tokenmill-budget-usd": "nan"}, {}),
        ({}, {"budget_usd": -0.5}),
        ({}, {"session_id": ""}),
        ({}, {"session_id": "x" * 300}),
        ({"x-session-id": "a\tb"}, {}),
    ],
)
def test_what_cannot_be_an_identity(headers: dict[str, str], fields: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        identity(headers, **fields)


def test_requests_carry_it_through_every_api(server: LiveServer) -> None:
    headers = {"x-tokenmill-tenant": "acme", "x-session-id": "lead-1"}
    server.dispatcher.seen.clear()
    chat = {"model": "bytes", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": "bytes", "prompt": "hi", "max_tokens": 2}),
        ("/v1/messages", chat),
        ("/v1/responses", {"model": "bytes", "input": "hi", "max_output_tokens": 2}),
    ):
        response = server.post(path, body, headers=headers)
        assert response.status_code == 200, response.text
    assert [(r.tenant, r.session_id) for r in server.dispatcher.seen] == [("acme", "lead-1")] * 4


def test_the_budget_of_an_answer_is_shared_by_its_choices(server: LiveServer) -> None:
    server.dispatcher.seen.clear()
    server.complete("hi", n=4, max_tokens=1, budget_usd=2.0)
    assert [request.budget_usd for request in server.dispatcher.seen] == [0.5] * 4
    server.dispatcher.seen.clear()
    server.complete("hi", n=2, max_tokens=1, budget_usd=2.0, session_id="s")
    assert [request.budget_usd for request in server.dispatcher.seen] == [2.0] * 2


def test_a_session_can_be_asked_what_it_cost(server: LiveServer) -> None:
    usages = [
        server.post(
            "/v1/completions",
            {"model": "bytes", "prompt": f"turn {i}", "max_tokens": 5},
            headers={"x-tokenmill-session-id": "asked", "x-tokenmill-tenant": "t9"},
        ).json()["usage"]
        for i in range(3)
    ]
    answer = server.client.get("/v1/cost", params={"session": "asked"}).json()
    assert answer["usd"]["total"] == pytest.approx(sum(usage["cost"]["usd"] for usage in usages))
    assert answer["usd"]["total"] == pytest.approx(15 * STEP_USD)
    assert answer["tokens"]["output"] == 15 and answer["requests"]["ended"] == 3
    assert "balance" not in answer
    groups = server.client.get("/v1/cost", params={"by": "tenant", "window": "1h"}).json()["groups"]
    assert next(g for g in groups if g["tenant"] == "t9")["usd"]["total"] == answer["usd"]["total"]


def test_the_whole_bill_and_its_balance(server: LiveServer) -> None:
    server.complete("x", max_tokens=3)
    answer = server.client.get("/v1/cost").json()
    assert answer["balance"]["unexplained_seconds"] <= 1e-6
    parts = sum(usd for line, usd in answer["usd"].items() if line not in ("total", "charged"))
    assert answer["usd"]["total"] == pytest.approx(parts)
    assert answer["usd"]["idle"] > 0


def test_one_request_by_its_id(server: LiveServer) -> None:
    body = server.complete("count", n=2, max_tokens=4).json()
    answer = server.client.get("/v1/cost", params={"request_id": body["id"]}).json()
    assert [choice["request_id"] for choice in answer["choices"]] == [f"{body['id']}-0", f"{body['id']}-1"]
    assert answer["usd"] == pytest.approx(body["usage"]["cost"]["usd"])
    assert all(choice["is_ended"] for choice in answer["choices"])
    one = server.client.get("/v1/cost", params={"request_id": f"{body['id']}-1"}).json()
    assert one["usd"] == pytest.approx(4 * STEP_USD)
    missing = server.client.get("/v1/cost", params={"request_id": "cmpl-nobody"})
    assert missing.status_code == 404 and missing.json()["error"]["param"] == "request_id"


def test_wrong_questions(server: LiveServer) -> None:
    response = server.client.get("/v1/cost", params={"by": "tenannt"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "by" and "did you mean 'tenant'" in response.text


def test_a_spent_budget_is_402_and_not_to_be_repeated(server: LiveServer) -> None:
    dispatcher = server.dispatcher
    dispatcher.error, dispatcher.fail_at = BudgetError("the budget of session 's' is spent"), None
    try:
        response = server.complete("hi")
        stream = server.complete("hi", stream=True)
    finally:
        dispatcher.error = None
    assert response.status_code == stream.status_code == 402
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("budget_exceeded", "insufficient_quota")
    assert "retryable" not in error and "retry-after" not in response.headers
