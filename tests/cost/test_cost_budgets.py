"""Budgets at admission and while an answer runs: sessions with their sub-agents, tenants, single requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operations.ops_fakes import RATE, make_hello
from tokenmill.core.config import FrozenConfig
from tokenmill.core.errors import BudgetError, ConfigError
from tokenmill.core.request import FinishReason, Request, TokenDelta
from tokenmill.core.wire import Abort, Generate, StepFrame
from tokenmill.cost.budgets import BudgetConfig
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.totals import Line
from tokenmill.operations.actions import Action, Deliver, Fail, Send
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatch import DispatchCore
from tokenmill.operations.router.registry import load_policy

USD_PER_S = RATE.usd_per_hour / 3600


class Bench:
    """One worker that computes a second for a request at a time."""

    def __init__(self, **budgets: Any) -> None:
        self.ledger = Ledger()
        config = BudgetConfig.parse(budgets)
        self.core = DispatchCore(OperationsConfig(), load_policy("round_robin", 0), self.ledger, RATE, config)
        self.core.handle(make_hello(), 0.0)
        self.until_s = 0.0
        self.num_sent = 0

    def submit(self, request_id: str, **fields: Any) -> list[Action]:
        request = Request(request_id=request_id, model="m", prompt_token_ids=[1, 2, 3], **fields)
        actions = self.core.submit(request, self.until_s)
        self.num_sent += 1
        return actions

    def work(self, request_id: str, seconds: float = 1.0, tokens: int = 1) -> list[Action]:
        self.until_s += seconds
        delta = TokenDelta(request_id=request_id, token_ids=(7,) * tokens, seconds=seconds)
        frame = StepFrame(
            worker_id="w0",
            incarnation=0,
            until_s=self.until_s,
            busy_s=seconds,
            num_received=self.num_sent,
            deltas=(delta,),
        )
        return self.core.handle(frame, self.until_s)


def kinds(actions: list[Action]) -> list[Any]:
    return [type(a.message) if isinstance(a, Send) else type(a) for a in actions]


def test_without_budgets_nothing_ends() -> None:
    bench = Bench()
    bench.submit("a", session_id="s", tenant="t")
    assert all(kinds(bench.work("a")) == [Deliver] for _ in range(20))


def test_an_answer_that_runs_ends_as_if_out_of_tokens() -> None:
    """The step that spends the last of it still goes out; the worker is told, and what it goes on to do is overrun."""
    bench = Bench(session_usd=2 * USD_PER_S)
    bench.submit("a", session_id="s")
    (first,) = bench.work("a")
    assert isinstance(first, Deliver) and first.delta.finish_reason is None
    abort, last = bench.work("a")
    assert isinstance(abort, Send) and isinstance(abort.message, Abort)
    assert isinstance(last, Deliver) and last.delta.finish_reason is FinishReason.LENGTH
    assert last.delta.token_ids == (7,)
    bench.work("a")
    assert bench.ledger.totals().lines[Line.OVERRUN].seconds == 1.0
    bench.core.check_integrity()


def test_an_answer_that_has_nothing_to_show_yet_is_refused() -> None:
    bench = Bench(session_usd=USD_PER_S)
    bench.submit("a", session_id="s")
    abort, fail = bench.work("a", 1.5, tokens=0)
    assert isinstance(abort, Send) and isinstance(fail, Fail) and isinstance(fail.error, BudgetError)
    bench.core.check_integrity()


def test_a_spent_session_is_refused_at_the_door_and_another_is_not() -> None:
    bench = Bench(session_usd=USD_PER_S)
    bench.submit("a", session_id="s")
    bench.work("a")
    with pytest.raises(BudgetError, match="the budget of session 's' is spent") as caught:
        bench.submit("b", session_id="s")
    assert (caught.value.status, caught.value.code, caught.value.retryable) == (402, "budget_exceeded", False)
    assert kinds(bench.submit("c", session_id="other")) == [Generate]
    assert kinds(bench.submit("d")) == [Generate]


def test_sub_agents_spend_their_leads_money() -> None:
    bench = Bench(session_usd=2 * USD_PER_S)
    bench.submit("a", session_id="sub", parent_session_id="lead")
    bench.work("a", 2.5)
    with pytest.raises(BudgetError, match="session 'lead'"):
        bench.submit("b", session_id="lead")
    with pytest.raises(BudgetError, match="session 'lead'"):
        bench.submit("c", session_id="sub2", parent_session_id="lead")


def test_a_budget_of_the_clients_own() -> None:
    """Told with each request, for its session; it can only be narrower than the server's."""
    bench = Bench(session_usd=10 * USD_PER_S)
    bench.submit("a", session_id="s", budget_usd=USD_PER_S)
    assert kinds(bench.work("a")) == [Abort, Deliver]
    with pytest.raises(BudgetError):
        bench.submit("b", session_id="s", budget_usd=USD_PER_S)
    bench.submit("c", session_id="s", budget_usd=1e9)
    for _ in range(8):
        assert kinds(bench.work("c")) == [Deliver]
    assert kinds(bench.work("c")) == [Abort, Deliver]


def test_without_a_session_the_budget_is_the_requests() -> None:
    bench = Bench()
    for request_id in ("a", "b"):
        bench.submit(request_id, budget_usd=2 * USD_PER_S)
        assert kinds(bench.work(request_id)) == [Deliver]
        assert kinds(bench.work(request_id)) == [Abort, Deliver]


def test_tenants_have_budgets_of_their_own() -> None:
    bench = Bench(tenant_usd=USD_PER_S, tenants={"rich": 100.0})
    for tenant in ("poor", "rich"):
        bench.submit(f"{tenant}-1", tenant=tenant)
        bench.work(f"{tenant}-1", 3.0)
    with pytest.raises(BudgetError, match="tenant 'poor'"):
        bench.submit("poor-2", tenant="poor")
    assert kinds(bench.submit("rich-2", tenant="rich")) == [Generate]


def test_overrun_and_storage_count_as_spent() -> None:
    bench = Bench(tenant_usd=2 * USD_PER_S)
    bench.submit("a", tenant="t")
    bench.work("a")
    bench.core.cancel("a")
    bench.work("a", 0.5)
    bench.ledger.store("m", 0.5 * USD_PER_S, tenant="t")
    with pytest.raises(BudgetError):
        bench.submit("b", tenant="t")


def test_degrading_runs_behind_all_others() -> None:
    bench = Bench(session_usd=USD_PER_S, when_spent="degrade", degraded_by=50)
    bench.submit("a", session_id="s", priority=3)
    assert kinds(bench.work("a", 2.0)) == [Deliver], "what runs is left alone"
    (send,) = bench.submit("b", session_id="s", priority=3)
    assert isinstance(send, Send) and isinstance(send.message, Generate) and send.message.request.priority == 53
    (other,) = bench.submit("c", session_id="t", priority=3)
    assert isinstance(other, Send) and isinstance(other.message, Generate) and other.message.request.priority == 3


def test_a_budget_of_nothing_lets_nothing_in() -> None:
    with pytest.raises(BudgetError):
        Bench(tenants={"t": 0}).submit("a", tenant="t")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session_usd": -1}, "session_usd=-1"),
        ({"tenants": {"t": float("inf")}}, "tenants.t"),
        ({"when_spent": "panic"}, "when_spent='panic'"),
        ({"sesion_usd": 1}, "did you mean 'session_usd'"),
    ],
)
def test_settings_that_are_no_budget(settings: dict[str, Any], message: str) -> None:
    assert issubclass(BudgetConfig, FrozenConfig)
    with pytest.raises(ConfigError, match=message):
        BudgetConfig.parse(settings)
