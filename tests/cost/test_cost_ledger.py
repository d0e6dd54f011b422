"""The ledger, case by case: kinds of time, exits, late and repeated frames, energy, tokens, tenants, memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tokenmill.core.slo import SLO
from tokenmill.cost.cells import OTHER_SESSIONS, OTHER_TENANTS, CellBook, Owner
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.requests import Outcome
from tokenmill.cost.shares import StepSpans
from tokenmill.cost.spending import Spending
from tokenmill.cost.tally import MONEY_PER_USD
from tokenmill.cost.totals import NOTHING, Line, Totals, window
from tokenmill.infra.meter import EnergySource

#: One dollar and 50 J per second: dollars are seconds.
RATE = DeviceRate(usd_per_hour=3600.0, watts=50.0)
K = Line


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def worker(ledger: Ledger, teller: Callable[..., Any]) -> Any:
    """A worker that said Hello at second 0 and serves model m."""
    ledger.hello("w", 0, "m", RATE, 0.0)
    return teller()


def seconds(ledger: Ledger, model: str | None = None) -> dict[Line, float]:
    return {kind: amount.seconds for kind, amount in ledger.totals(model).lines.items() if amount.seconds}


def assert_balanced(ledger: Ledger, now_s: float) -> None:
    balance = ledger.check_balance(now_s)
    assert balance.unexplained_s == pytest.approx(0.0, abs=1e-9)
    assert balance.is_balanced


# -- time by kind --


def test_every_second_has_a_kind(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame(startup_s=2.0))
    ledger.step(worker.frame({"a": 0.5, "b": 0.25}, unattributed_s=0.125))
    ledger.step(worker.frame(idle_s=4.0))
    assert seconds(ledger) == {K.STARTUP: 2.0, K.DECODE: 0.75, K.UNATTRIBUTED: 0.125, K.IDLE: 4.0}
    assert ledger.totals().whole.seconds == worker.until_s
    assert ledger.totals().whole.usd == pytest.approx(worker.until_s)
    assert_balanced(ledger, worker.until_s)


def test_unreported_time_is_not_due_yet(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame(idle_s=1.0))
    balance = ledger.check_balance(1.5)
    assert (balance.process_s, balance.explained_s, balance.unreported_s) == (1.5, 1.0, 0.5)
    assert balance.is_balanced


def test_a_crash_loses_what_was_not_reported(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.exited("w", 0, 3.5)
    assert seconds(ledger) == {K.DECODE: 1.0, K.LOST: 2.5}
    assert ledger.totals().whole.usd == pytest.approx(3.5)
    assert_balanced(ledger, 99.0)


def test_a_late_frame_of_a_dead_process_takes_its_time_back_from_lost(ledger: Ledger, worker: Any) -> None:
    first, second = worker.frame({"a": 1.0}), worker.frame({"a": 2.0})
    ledger.step(first)
    ledger.exited("w", 0, 3.5)
    ledger.hello("w", 1, "m", RATE, 4.0)
    ledger.step(second)
    assert seconds(ledger) == {K.DECODE: 3.0, K.LOST: 0.5}
    assert_balanced(ledger, 4.0)


def test_a_successor_ends_a_life_whose_exit_nobody_saw(ledger: Ledger, worker: Any, teller: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.hello("w", 1, "m", RATE, 5.0)
    assert seconds(ledger) == {K.DECODE: 1.0, K.LOST: 4.0}  # it can not have lived longer
    ledger.exited("w", 0, 2.0)
    assert seconds(ledger) == {K.DECODE: 1.0, K.LOST: 1.0}
    next_life = teller(incarnation=1, started_s=5.0)
    ledger.step(next_life.frame({"a": 1.0}))
    assert_balanced(ledger, 6.0)


def test_copies_of_a_frame_count_once(ledger: Ledger, worker: Any) -> None:
    frame = worker.frame({"a": 1.0})
    for _ in range(3):
        ledger.step(frame)
    assert seconds(ledger) == {K.DECODE: 1.0}
    assert ledger.num_refused_frames == 2


def test_order_does_not_matter(ledger: Ledger, worker: Any) -> None:
    frames = [worker.frame({"a": 1.0}), worker.frame(idle_s=2.0), worker.frame({"b": 4.0})]
    for frame in reversed(frames):
        ledger.step(frame)
    assert seconds(ledger) == {K.DECODE: 5.0, K.IDLE: 2.0}
    assert_balanced(ledger, 7.0)


def test_frames_at_one_instant_are_different_frames(ledger: Ledger, worker: Any) -> None:
    """On virtual time a step can take no time at all."""
    ledger.step(worker.frame({"a": 0.0}))
    ledger.step(worker.frame({"a": 0.0}))
    assert ledger.totals().counts.num_output_tokens == 2


def test_frames_of_nobody_are_refused(ledger: Ledger, teller: Any) -> None:
    ledger.step(teller("stranger").frame({"a": 1.0}))
    assert ledger.totals() == NOTHING
    assert ledger.num_refused_frames == 1


def test_very_old_frames_are_refused_rather_than_counted_twice(ledger: Ledger, worker: Any) -> None:
    frames = [worker.frame(idle_s=0.125) for _ in range(400)]
    for frame in frames:
        ledger.step(frame)
    ledger.step(frames[0])
    assert seconds(ledger) == {K.IDLE: 50.0}
    assert ledger.num_refused_frames == 1


@pytest.mark.parametrize("field", ["busy_s", "idle_s", "startup_s", "unattributed_s", "until_s"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_impossible_times_leave_a_hole_in_the_balance(ledger: Ledger, worker: Any, field: str, value: float) -> None:
    """A clock gone wrong must show up, not be smoothed over."""
    bad = msgspec.structs.replace(worker.frame({"a": 1.0}), **{field: value})
    ledger.step(bad)
    ledger.step(worker.frame(idle_s=1.0))
    assert seconds(ledger) == {K.IDLE: 1.0}
    balance = ledger.check_balance(2.0)
    assert balance.unexplained_s == 1.0
    assert not balance.is_balanced


def test_a_frame_that_does_not_add_up_shows_in_the_balance(ledger: Ledger, worker: Any) -> None:
    worker.until_s += 10.0  # ten seconds that no frame tells of
    ledger.step(worker.frame({"a": 1.0}))
    assert ledger.check_balance(11.0).unexplained_s == 10.0


def test_over_and_under_explained_workers_do_not_cancel_out(ledger: Ledger, teller: Any) -> None:
    for worker_id, gap_s in (("x", 2.0), ("y", -2.0)):
        ledger.hello(worker_id, 0, "m", RATE, 0.0)
        teller_ = teller(worker_id, started_s=0.0)
        frame = teller_.frame(idle_s=10.0)
        ledger.step(msgspec.structs.replace(frame, until_s=frame.until_s + gap_s))
    assert ledger.check_balance(10.0).unexplained_s == 4.0


# -- hello and exit --


def test_the_same_hello_again_changes_nothing(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.hello("w", 0, "m", RATE, 0.0)
    assert seconds(ledger) == {K.DECODE: 1.0}
    assert_balanced(ledger, 1.0)


def test_hello_after_a_lost_connection_loses_the_time_between(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    unheard = worker.frame({"a": 2.0})
    ledger.hello("w", 0, "m", RATE, worker.until_s)
    ledger.step(unheard)  # it had been declared lost
    ledger.step(worker.frame(idle_s=1.0))
    assert seconds(ledger) == {K.DECODE: 1.0, K.LOST: 2.0, K.IDLE: 1.0}
    assert ledger.num_refused_frames == 1
    assert_balanced(ledger, 4.0)


def test_a_new_frontend_bills_from_the_last_frame_of_the_old_one(ledger: Ledger, teller: Any) -> None:
    worker = teller()
    before = worker.frame({"a": 8.0})
    ledger.hello("w", 0, "m", RATE, worker.until_s)
    ledger.step(before)
    ledger.step(worker.frame({"b": 1.0}))
    assert seconds(ledger) == {K.DECODE: 1.0}
    assert_balanced(ledger, 9.0)


def test_a_price_change_holds_from_then_on(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.hello("w", 0, "m", DeviceRate(7200.0, 50.0), 0.0)
    ledger.step(worker.frame({"a": 1.0}))
    assert ledger.request_cost("a").usd == pytest.approx(3.0)


def test_an_old_incarnation_does_not_come_back(ledger: Ledger) -> None:
    ledger.hello("w", 3, "m", RATE, 10.0)
    ledger.hello("w", 2, "m", RATE, 0.0)
    assert ledger.check_balance(11.0).process_s == 1.0


def test_a_process_that_dies_before_hello_is_billed_like_its_predecessor(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.exited("w", 0, 1.0)
    ledger.exited("w", 1, 6.0, started_s=2.0)
    assert seconds(ledger, "m") == {K.DECODE: 1.0, K.LOST: 4.0}
    ledger.exited("new", 0, 3.0, started_s=1.0, model="m2", rate=RATE)
    assert seconds(ledger, "m2") == {K.LOST: 2.0}
    assert ledger.num_unbilled_exits == 0
    assert_balanced(ledger, 9.0)


def test_a_process_of_which_nothing_is_known_is_counted(ledger: Ledger) -> None:
    ledger.exited("w", 0, 5.0)
    ledger.exited("w", 0, 5.0, started_s=1.0)
    assert ledger.num_unbilled_exits == 2
    assert ledger.totals() == NOTHING


# -- requests --


def test_a_request_costs_its_shares(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 0.5, "b": 1.5}))
    ledger.step(worker.frame({"a": 0.25}))
    cost = ledger.finish("a")
    assert (cost.usd, cost.joules, cost.seconds) == (pytest.approx(0.75), pytest.approx(37.5), 0.75)
    assert cost.energy_source is EnergySource.MODELLED
    assert ledger.request_cost("a") == cost
    assert ledger.request_cost("b").usd == pytest.approx(1.5)


def test_a_request_that_moved_costs_what_both_workers_did(ledger: Ledger, worker: Any, teller: Any) -> None:
    ledger.hello("x", 0, "m", DeviceRate(7200.0, 50.0), 0.0)
    ledger.step(worker.frame({"a": 1.0}))
    ledger.step(teller("x").frame({"a": 1.0}))
    assert ledger.request_cost("a").usd == pytest.approx(3.0)


def test_a_request_that_was_never_computed_is_free(ledger: Ledger) -> None:
    assert ledger.request_cost("nobody").usd == 0.0
    assert ledger.finish("refused").seconds == 0.0
    assert ledger.totals() == NOTHING


def test_work_behind_the_end_is_overrun(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.finish("a")
    ledger.step(worker.frame({"a": 0.5, "b": 0.5}, tokens=2))
    assert seconds(ledger) == {K.DECODE: 1.5, K.OVERRUN: 0.5}
    assert ledger.totals().counts.num_overrun_tokens == 2
    assert ledger.request_cost("a").usd == pytest.approx(1.0)  # what the client was told stays true
    assert_balanced(ledger, 2.0)


def test_finishing_twice_counts_once(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    assert ledger.finish("a") == ledger.finish("a")
    assert ledger.totals().counts.num_requests == 1


def test_an_id_used_again_starts_anew(ledger: Ledger, worker: Any) -> None:
    ledger.begin("a", "m", num_prompt_tokens=5)
    ledger.step(worker.frame({"a": 1.0}))
    ledger.finish("a")
    ledger.begin("a", "m", num_prompt_tokens=5)
    assert ledger.request_cost("a").usd == 0.0
    ledger.step(worker.frame({"a": 2.0}))
    assert ledger.finish("a").usd == pytest.approx(2.0)
    assert seconds(ledger) == {K.DECODE: 3.0}
    assert ledger.totals().counts.num_requests == 2
    assert ledger.totals().counts.num_prompt_tokens == 10


# -- tokens, SLO and $/Mtok --


def test_usd_per_mtok_is_the_whole_bill_over_tokens(ledger: Ledger, worker: Any) -> None:
    totals = ledger.totals()
    assert (totals.usd_per_mtok_total, totals.usd_per_mtok_output, totals.usd_per_mtok_good) == (None, None, None)
    ledger.begin("a", "m", num_prompt_tokens=30)
    ledger.step(worker.frame({"a": 1.0}, tokens=10, cached=16, prompt_tokens=14))
    ledger.step(worker.frame(idle_s=3.0))
    ledger.finish("a")
    totals = ledger.totals()
    assert totals.usd_per_mtok_total == pytest.approx(4.0 / 40 * 1e6)
    assert totals.usd_per_mtok_output == totals.usd_per_mtok_good == pytest.approx(4.0 / 10 * 1e6)
    counts = totals.counts
    assert (counts.num_prompt_tokens, counts.num_cached_tokens, counts.num_computed_tokens) == (30, 16, 14)
    assert (counts.num_requests, counts.num_good_requests, counts.num_good_tokens) == (1, 1, 10)


def test_a_prompt_without_a_first_token_is_not_served(ledger: Ledger, worker: Any) -> None:
    ledger.begin("a", "m", num_prompt_tokens=30)
    ledger.step(worker.frame({"a": 1.0}, tokens=0))
    ledger.finish("a", is_complete=False)
    counts = ledger.totals().counts
    assert (counts.num_prompt_tokens, counts.num_output_tokens, counts.num_good_requests) == (0, 0, 0)


def test_what_failed_is_not_good(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}, tokens=5))
    ledger.finish("a", is_complete=False)
    counts = ledger.totals().counts
    assert (counts.num_output_tokens, counts.num_good_tokens) == (5, 0)
    assert ledger.totals().usd_per_mtok_good is None


@pytest.mark.parametrize("observed_first", [True, False])
def test_the_door_knows_better(teller: Any, observed_first: bool) -> None:
    """It cut the text at a stop string (3 of 5 tokens shown) and clocked it."""
    ledger, worker = Ledger(SLO(ttft_s=0.5, tpot_s=0.05)), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for request_id in ("quick", "slow"):
        ledger.step(worker.frame({request_id: 1.0}, tokens=5))
        outcome = Outcome(3, ttft_s=0.4 if request_id == "quick" else 0.6, tpot_s=0.01, e2e_s=1.0)
        if observed_first:
            ledger.observe(request_id, outcome)
        ledger.finish(request_id, is_complete=False)  # the fleet saw only that the stream was left
        if not observed_first:
            ledger.observe(request_id, outcome)
    counts = ledger.totals().counts
    assert (counts.num_output_tokens, counts.num_overrun_tokens) == (6, 4)
    assert (counts.num_good_tokens, counts.num_good_requests, counts.num_requests) == (3, 1, 2)


def test_with_objectives_unclocked_tokens_are_not_good(teller: Any) -> None:
    ledger, worker = Ledger(SLO(ttft_s=0.5)), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    ledger.step(worker.frame({"a": 1.0}))
    ledger.finish("a")
    assert ledger.totals().counts.num_good_tokens == 0


def test_sums_by_model(ledger: Ledger, worker: Any, teller: Any) -> None:
    ledger.hello("x", 0, "n", RATE, 0.0)
    ledger.step(worker.frame({"a": 1.0}))
    ledger.step(teller("x").frame({"b": 2.0}, tokens=3))
    assert ledger.models() == ["m", "n"]
    assert seconds(ledger, "m") == {K.DECODE: 1.0}
    assert ledger.totals("n").counts.num_output_tokens == 3
    assert ledger.totals().whole == ledger.totals("m").whole + ledger.totals("n").whole
    assert ledger.totals("unknown") == NOTHING


def test_totals_are_a_snapshot(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    before = ledger.totals()
    kept = before.whole, before.counts.num_output_tokens
    ledger.step(worker.frame({"a": 1.0}))
    assert (before.whole, before.counts.num_output_tokens) == kept


# -- tenants --


def sums_by(ledger: Ledger, name: str) -> dict[str | None, Totals]:
    sums: dict[str | None, Totals] = {}
    for _, owner, cell in ledger.cells():
        key = getattr(owner, name)
        sums[key] = sums.get(key, NOTHING) + cell.freeze()
    return sums


def test_sums_by_tenant(ledger: Ledger, worker: Any) -> None:
    ledger.begin("a", "m", tenant="acme", num_prompt_tokens=7)
    ledger.begin("b", "m", tenant="acme", num_prompt_tokens=5)
    ledger.step(worker.frame({"a": 1.0, "b": 2.0}))
    assert sums_by(ledger, "tenant")["acme"].charged.usd == 3.0  # while it runs
    ledger.finish("b")
    ledger.finish("a")
    ledger.step(worker.frame({"a": 0.5}))
    acme = sums_by(ledger, "tenant")["acme"]
    assert (acme.charged.usd, acme.lines[K.OVERRUN].usd) == (3.0, 0.5)
    assert (acme.counts.num_prompt_tokens, acme.counts.num_output_tokens, acme.counts.num_requests) == (12, 2, 2)
    assert acme.counts.num_overrun_tokens == 1
    assert ledger.spending.tenant_usd("acme") == 3.5


def test_too_many_tenants_share_a_sum(teller: Any) -> None:
    ledger, worker = Ledger(max_tenants=2), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for i in range(5):
        ledger.begin(f"r{i}", "m", tenant=f"t{i}")
        ledger.step(worker.frame({f"r{i}": 1.0}))
    assert {name: t.charged.seconds for name, t in sums_by(ledger, "tenant").items() if name} == {
        "t0": 1.0,
        "t1": 1.0,
        OTHER_TENANTS: 3.0,
    }
    assert ledger.spending.tenant_usd("t4") == 1.0, "a budget is of a tenant, not of those it shares a sum with"


def test_accounts_that_nobody_uses_are_forgotten() -> None:
    spending = Spending(max_names=3)
    for i in range(5):
        spending.adopt(f"s{i}", "lead")
        spending.add(Owner("m", f"t{i}", f"s{i}"), MONEY_PER_USD)
    assert [spending.tenant_usd(f"t{i}") for i in range(5)] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert spending.session_usd("lead") == 5.0 and spending.session_usd("s4") == 1.0
    assert spending.parent("s0") is None and spending.parent("s4") == "lead"


def test_sums_by_session_and_what_sub_agents_spend(ledger: Ledger, worker: Any) -> None:
    """A session's own sum is its own; what it spent counts its sub-agents too, and theirs."""
    ledger.begin("a", "m", session="lead")
    ledger.begin("b", "m", session="sub", parent_session="lead")
    ledger.begin("c", "m", session="subsub", parent_session="sub")
    ledger.step(worker.frame({"a": 1.0, "b": 2.0, "c": 4.0}))
    assert {n: t.charged.usd for n, t in sums_by(ledger, "session").items()} == {"lead": 1.0, "sub": 2.0, "subsub": 4.0}
    assert [ledger.spending.session_usd(name) for name in ("lead", "sub", "subsub")] == [7.0, 6.0, 4.0]


def test_sessions_that_adopt_each_other_spend_once(ledger: Ledger, worker: Any) -> None:
    ledger.begin("a", "m", session="x", parent_session="y")
    ledger.begin("b", "m", session="y", parent_session="x")
    ledger.begin("c", "m", session="z", parent_session="z")
    ledger.step(worker.frame({"a": 1.0, "b": 1.0, "c": 1.0}))
    assert [ledger.spending.session_usd(name) for name in "xyz"] == [2.0, 2.0, 1.0]


# -- what a second was for --


def test_lines_of_a_step(ledger: Ledger, worker: Any) -> None:
    frame = worker.frame(
        {"a": 2.0},
        prefill_s=0.5,
        draft_s=0.25,
        rejected_s=0.125,
        transfer_s=0.5,
        num_draft_tokens=4,
        num_rejected_tokens=1,
    )
    ledger.step(frame)
    expected = {K.PREFILL: 0.5, K.DECODE: 0.625, K.DRAFTING: 0.25, K.REJECTED: 0.125, K.TRANSFER: 0.5}
    assert seconds(ledger) == expected
    assert ledger.request_cost("a").by_line == expected and sum(expected.values()) == 2.0
    counts = ledger.totals().counts
    assert (counts.num_draft_tokens, counts.num_rejected_tokens) == (4, 1)


def test_parts_that_are_larger_than_their_whole_are_cut(ledger: Ledger, worker: Any) -> None:
    """Somebody else's worker may say so; the bill still adds up."""
    ledger.step(worker.frame({"a": 1.0}, prefill_s=0.75, rejected_s=0.75))
    assert seconds(ledger) == {K.PREFILL: 0.75, K.REJECTED: 0.25}


def test_of_n_choices_the_prompt_and_its_cached_tokens_count_once(ledger: Ledger, worker: Any) -> None:
    """Dollars per million tokens must not fall because a prompt is counted for each of its choices."""
    for i in range(3):
        ledger.begin(f"a{i}", "m", num_prompt_tokens=0 if i else 30)
    ledger.step(worker.frame({f"a{i}": 1.0 for i in range(3)}, tokens=10, cached=16))
    counts = ledger.totals().counts
    assert (counts.num_prompt_tokens, counts.num_cached_tokens, counts.num_output_tokens) == (30, 16, 30)
    assert ledger.totals().usd_per_mtok_total == pytest.approx(3.0 / 60 * 1e6)


def test_a_gang_is_billed_for_all_its_ranks(ledger: Ledger, teller: Any) -> None:
    """Four ranks work, wait and start together: every second of the worker is four device-seconds."""
    ledger.hello("g", 0, "m", RATE.gang(4), 0.0)
    gang = teller("g")
    ledger.step(gang.frame({"a": 1.0}, startup_s=2.0, idle_s=0.5))
    ledger.exited("g", 0, 4.0)
    whole = ledger.totals().whole
    assert (whole.seconds, whole.device_seconds, whole.usd, whole.joules) == (4.0, 16.0, 16.0, 800.0)
    assert ledger.request_cost("a").usd == 4.0
    assert ledger.totals().lines[K.LOST].device_seconds == 2.0


def test_overlapped_steps_are_charged_up_to_the_last_result(ledger: Ledger, worker: Any) -> None:
    """Frames of step n go out while n + 1 runs: they end where n ended, and the bill has neither hole nor overlap."""
    spans = StepSpans()
    steps = [(0.0, 1.0), (0.75, 2.0), (1.75, 2.5)]
    for start_s, end_s in steps:
        ledger.step(worker.frame({"a": spans.take(start_s, end_s)}))
    assert worker.until_s == spans.until_s == 2.5
    assert ledger.check_balance(2.625).unexplained == 0
    assert ledger.request_cost("a").seconds == 2.5


# -- storage --


def test_storage_is_dollars_beside_time(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}))
    ledger.store("m", 0.25, tenant="acme", session="s")
    assert ledger.totals().lines[K.STORAGE].usd == 0.25
    assert ledger.totals().whole.usd == 1.25 and ledger.totals().whole.seconds == 1.0
    assert ledger.spending.tenant_usd("acme") == ledger.spending.session_usd("s") == 0.25
    assert_balanced(ledger, 1.0)


# -- minutes --


def test_a_wall_clock_that_is_set_back_moves_nothing(teller: Any) -> None:
    """Minutes follow the frames' own clock from one fixed wall time on."""
    ledger, worker = Ledger(epoch_s=6_000.0), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for _ in range(3):
        ledger.step(worker.frame({"a": 40.0}))
    late = worker.frame(idle_s=1.0)
    ledger.step(worker.frame(idle_s=59.0))
    ledger.step(late)
    assert [(minute, cell.freeze().whole.seconds) for minute, _, cell in ledger.cells()] == [
        (100, 40.0),
        (101, 40.0),
        (102, 40.0),
        (103, 60.0),
    ]


def test_old_minutes_become_hours_and_days_without_loss(teller: Any) -> None:
    ledger, worker = Ledger(), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for i in range(24 * 20):  # twenty days, one frame an hour
        ledger.begin(f"r{i}", "m", session=f"s{i}")
        ledger.step(worker.frame({f"r{i}": 1.0}, idle_s=3599.0))
        ledger.finish(f"r{i}")
    ledger.take_additions()
    cells = list(ledger.cells())
    assert len({minute for minute, _, _ in cells}) < 24 * 15 + 10
    assert sum((cell.freeze() for _, _, cell in cells), NOTHING).whole.seconds == worker.until_s
    assert ("s479" in {owner.session for _, owner, _ in cells}) and (
        "s0" not in {owner.session for _, owner, _ in cells}
    )


def test_too_many_cells_drop_the_oldest_sessions() -> None:
    book = CellBook(max_tenants=10, max_cells=50)
    for i in range(200):
        book.cell(i // 20, Owner("m", "t", f"s{i}")).counts.num_requests += 1
        book.take_additions()
    cells = list(book.all())
    assert len(cells) <= 60
    assert sum(cell.counts.num_requests for _, _, cell in cells) == book.totals("m").counts.num_requests == 200
    assert cells[-1][1].session == "s199" and cells[0][1].session == OTHER_SESSIONS


# -- energy --


def test_measured_energy_goes_where_the_time_went(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0, "b": 2.0}, idle_s=1.0, joules=400.0))
    cost = ledger.finish("a")
    assert (cost.joules, cost.energy_source) == (pytest.approx(100.0), EnergySource.MEASURED)
    whole = ledger.totals().whole
    assert (whole.joules, whole.energy_source) == (pytest.approx(400.0), EnergySource.MEASURED)
    assert whole.unmetered_joules == 0.0


def test_one_figure_never_mixes_measured_and_modelled(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}, joules=400.0))
    ledger.step(worker.frame({"a": 1.0}))
    cost = ledger.finish("a")
    assert (cost.joules, cost.energy_source) == (pytest.approx(100.0), EnergySource.MODELLED)  # watts x 2 s
    whole = ledger.totals().whole
    assert (whole.measured_joules, whole.unmetered_joules) == (pytest.approx(400.0), pytest.approx(50.0))


def test_lost_time_has_no_meter(ledger: Ledger, worker: Any) -> None:
    ledger.step(worker.frame({"a": 1.0}, joules=400.0))
    ledger.exited("w", 0, 2.0)
    assert ledger.totals().lines[K.LOST].joules == pytest.approx(50.0)
    assert ledger.totals().whole.energy_source is EnergySource.MODELLED


@pytest.mark.parametrize("joules", [float("nan"), float("inf"), -5.0])
def test_a_broken_meter_counts_as_none(ledger: Ledger, worker: Any, joules: float) -> None:
    ledger.step(worker.frame({"a": 1.0}, joules=joules))
    assert ledger.request_cost("a").energy_source is EnergySource.MODELLED
    assert ledger.request_cost("a").joules == pytest.approx(50.0)


def test_nothing_has_no_measured_energy() -> None:
    assert NOTHING.whole.energy_source is EnergySource.MODELLED
    assert NOTHING.whole.joules == 0.0


# -- windows --


def test_window_rates(ledger: Ledger, worker: Any) -> None:
    ledger.begin("a", "m", num_prompt_tokens=30)
    ledger.step(worker.frame({"a": 1.0}, tokens=10, prompt_tokens=30))
    before = ledger.totals()
    ledger.begin("b", "m", num_prompt_tokens=20)
    ledger.step(worker.frame({"b": 2.0}, tokens=80, prompt_tokens=20))
    ledger.step(worker.frame(idle_s=8.0))
    rates = window(before, ledger.totals(), 10.0)
    assert (rates.prompt_tok_per_s, rates.generation_tok_per_s) == (2.0, 8.0)
    assert rates.usd == pytest.approx(10.0)
    assert rates.usd_per_mtok_total == pytest.approx(10.0 / 100 * 1e6)
    assert rates.usd_per_mtok_output == pytest.approx(10.0 / 80 * 1e6)
    assert rates.busy_share == pytest.approx(0.2)


def test_an_idle_window(ledger: Ledger, worker: Any) -> None:
    before = ledger.totals()
    assert window(before, before, 10.0).busy_share == 0.0
    ledger.step(worker.frame(idle_s=10.0))
    rates = window(before, ledger.totals(), 10.0)
    assert rates.usd_per_mtok_total is None
    assert rates.usd == pytest.approx(10.0)
    with pytest.raises(AssertionError):
        window(before, before, 0.0)


# -- bounded memory --


def test_finished_requests_fold_into_the_sums(teller: Any) -> None:
    ledger, worker = Ledger(max_finished=10), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for i in range(100):
        ledger.step(worker.frame({f"r{i}": 0.125}))
        ledger.finish(f"r{i}")
    assert ledger.request_cost("r99").usd == pytest.approx(0.125)
    assert ledger.request_cost("r0").usd == 0.0  # forgotten by name
    assert ledger.totals().counts.num_requests == 100
    assert ledger.totals().whole.usd == pytest.approx(12.5)


def test_abandoned_requests_do_not_pile_up(teller: Any) -> None:
    """Work for the clients of an earlier frontend is never finished by this one."""
    ledger, worker = Ledger(max_open=10, max_finished=10), teller()
    ledger.hello("w", 0, "m", RATE, 0.0)
    for i in range(100):
        ledger.step(worker.frame({f"r{i}": 0.125}))
    counts = ledger.totals().counts
    assert (counts.num_requests, counts.num_good_requests) == (90, 0)
    assert ledger.totals().whole.usd == pytest.approx(12.5)


def test_ended_processes_fold_into_the_sums(teller: Any) -> None:
    ledger = Ledger(max_ended=4)
    now_s = 0.0
    for incarnation in range(50):
        ledger.hello("w", incarnation, "m", RATE, now_s)
        life = teller(incarnation=incarnation, started_s=now_s)
        ledger.step(life.frame({"a": 1.0}, prompt_tokens=3))
        ledger.exited("w", incarnation, now_s + 1.5)
        now_s += 2.0
    assert seconds(ledger) == {K.DECODE: 50.0, K.LOST: 25.0}
    assert ledger.totals().counts.num_computed_tokens == 150
    assert ledger.check_balance(now_s).process_s == pytest.approx(75.0)
    assert_balanced(ledger, now_s)
    ledger.step(teller(incarnation=0).frame({"a": 9.0}))  # too late even for a late frame
    assert ledger.num_refused_frames == 1


def test_names_of_workers_long_gone_are_forgotten() -> None:
    """A fleet that scales up and down for months leaves only sums behind."""
    ledger = Ledger(max_ended=1)
    for i in range(10_010):
        ledger.hello(f"w{i}", 0, "m", RATE, float(i))
        ledger.exited(f"w{i}", 0, i + 1.0)
    assert len(ledger._newest) <= 10_002
    assert seconds(ledger) == {K.LOST: 10_010.0}
