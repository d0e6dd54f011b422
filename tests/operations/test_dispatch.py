"""The dispatcher's decisions, one by one: placing, tokens, loss, retry, deadlines, silence."""

import random

import pytest

from tests.operations.ops_fakes import RATE, make_core, make_exit, make_frame, make_hello, make_request, refusal, tokens
from tokenmill.core.errors import (
    BadRequestError,
    DeadlineError,
    InternalError,
    ModelNotFoundError,
    OverloadedError,
    TokenmillError,
    UnavailableError,
    WorkerLostError,
)
from tokenmill.core.request import FinishReason, Request, TokenDelta
from tokenmill.core.wire import Abort, Generate, Goodbye, Introduce, Unresponsive
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.totals import Line
from tokenmill.operations.actions import Action, Deliver, Fail, Replace, Send
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatch import DispatchCore
from tokenmill.operations.members import FleetSnapshot, MemberState
from tokenmill.operations.router.base import Placement


def sent_to(actions: list[Action]) -> list[str]:
    return [a.worker_id for a in actions if isinstance(a, Send) and isinstance(a.message, Generate)]


def error_of(actions: list[Action]) -> TokenmillError:
    (action,) = [a for a in actions if isinstance(a, Fail)]
    return action.error


def test_a_request_goes_to_a_worker_and_its_tokens_come_back() -> None:
    core = make_core()
    request = make_request("r")
    assert core.submit(request, 1.0) == [Send("w0", 0, Generate(request, index=1))]
    assert core.handle(make_frame("w0", 0, tokens("r", 5)), 1.1) == [Deliver("r", tokens("r", 5))]
    last = tokens("r", 6, finish=FinishReason.LENGTH)
    assert core.handle(make_frame("w0", 0, last, until_s=1.2), 1.2) == [Deliver("r", last)]
    assert len(core.in_flight) == 0 and core.fleet.get("w0").num_in_flight == 0
    assert core.cancel("r") == core.abort("r") == [], "it has ended"
    core.check_integrity()


def test_prompt_chunks_are_held_until_there_is_something_to_show() -> None:
    core = make_core()
    core.submit(make_request("r"), 1.0)
    chunk = TokenDelta(request_id="r", num_cached_tokens=16, seconds=0.5)
    assert core.handle(make_frame("w0", 0, chunk), 1.1) == []
    (deliver,) = core.handle(make_frame("w0", 0, tokens("r", 5), until_s=1.2), 1.2)
    assert deliver.delta == TokenDelta(request_id="r", token_ids=(5,), num_cached_tokens=16, seconds=0.5)


def test_an_id_in_use_is_refused() -> None:
    core = make_core()
    core.submit(make_request("r"), 1.0)
    with pytest.raises(BadRequestError, match="in use"):
        core.submit(make_request("r"), 1.0)
    assert len(core.in_flight) == 1


def test_admission_errors_leave_nothing_behind() -> None:
    core = make_core(OperationsConfig(max_queued_requests=0))
    with pytest.raises(ModelNotFoundError, match="served: 'm'"):
        core.submit(make_request("x", model="nope"), 1.0)
    for i in range(4):
        core.submit(make_request(f"r{i}"), 1.0)
    with pytest.raises(OverloadedError):
        core.submit(make_request("r4"), 1.0)
    assert len(core.in_flight) == 4
    core.is_draining = True
    with pytest.raises(UnavailableError):
        core.submit(make_request("r4"), 1.0)
    core.check_integrity()


def test_leaving_stops_the_worker_at_once() -> None:
    core = make_core()
    core.submit(make_request("r"), 1.0)
    assert core.cancel("r") == [Send("w0", 0, Abort("r"))]
    assert core.handle(make_frame("w0", 0, tokens("r", 5)), 1.1) == [], "overrun is not shown"
    core.check_integrity()


def test_abort_ends_the_iteration_of_a_consumer_that_stays() -> None:
    core = make_core()
    core.submit(make_request("r"), 1.0)
    stop, deliver = core.abort("r")
    assert stop == Send("w0", 0, Abort("r"))
    assert deliver.delta.finish_reason is FinishReason.ABORT


def test_a_workers_typed_error_reaches_the_consumer() -> None:
    core = make_core()
    core.submit(make_request("r"), 1.0)
    error = error_of(core.handle(make_frame("w0", 0, refusal("r", "context_length_exceeded", "too long")), 1.1))
    assert (error.code, error.message) == ("context_length_exceeded", "too long")
    core.submit(make_request("s"), 1.0)
    nameless = TokenDelta(request_id="s", finish_reason=FinishReason.ERROR)
    assert isinstance(error_of(core.handle(make_frame("w0", 0, nameless), 1.1)), InternalError)
    core.check_integrity()


def test_what_comes_late_of_an_earlier_request_of_the_same_id_is_not_shown() -> None:
    core = make_core()
    core.submit(make_request("r"), 1.0)
    core.cancel("r")
    core.submit(make_request("r"), 1.1)
    assert core.handle(make_frame("w0", 0, tokens("r", 7), until_s=1.2, num_received=1), 1.2) == []
    late_end = tokens("r", 8, finish=FinishReason.LENGTH)
    assert core.handle(make_frame("w0", 0, late_end, until_s=1.3, num_received=1), 1.3) == []
    (deliver,) = core.handle(make_frame("w0", 0, tokens("r", 1), until_s=1.4, num_received=2), 1.4)
    assert deliver == Deliver("r", tokens("r", 1))


def test_the_same_id_on_another_worker_is_another_request() -> None:
    core = make_core(workers=("w0", "w1"))
    (first,) = core.submit(make_request("r"), 1.0)
    core.cancel("r")
    (second,) = core.submit(make_request("r"), 1.1)
    assert second.worker_id != first.worker_id
    assert core.handle(make_frame(first.worker_id, 0, tokens("r", 7)), 1.2) == []


# -- loss --


def test_death_before_the_first_token_moves_the_request() -> None:
    core = make_core(workers=("w0", "w1"))
    request = make_request("r")
    (sent,) = core.submit(request, 1.0)
    other = {"w0": "w1", "w1": "w0"}[sent.worker_id]
    core.handle(make_frame(sent.worker_id, 0, TokenDelta(request_id="r", num_cached_tokens=0)), 1.1)
    assert core.handle(make_exit(sent.worker_id), 1.2) == [Send(other, 0, Generate(request, index=1))]
    assert core.handle(make_frame(sent.worker_id, 0, tokens("r", 1)), 1.3) == [], "a dead life's frame comes too late"
    (deliver,) = core.handle(make_frame(other, 0, tokens("r", 1)), 1.4)
    assert deliver == Deliver("r", tokens("r", 1)), "what the dead worker said of its prompt is gone"
    core.check_integrity()


def test_without_migration_death_after_the_first_token_is_a_retryable_error() -> None:
    core = make_core(OperationsConfig(migration=False), workers=("w0", "w1"))
    (sent,) = core.submit(make_request("r"), 1.0)
    core.handle(make_frame(sent.worker_id, 0, tokens("r", 1)), 1.1)
    error = error_of(core.handle(make_exit(sent.worker_id), 1.2))
    assert isinstance(error, WorkerLostError) and error.retryable
    assert "exit code -9" in error.message and "r" in error.message
    core.check_integrity()


def test_death_after_the_first_token_moves_what_is_left_of_the_answer() -> None:
    """Dynamo fails such streams by default; ours go on behind the tokens that went out, their prompt pending again."""
    core = make_core(workers=("w0", "w1"))
    request = make_request("r", num_tokens=30)
    (sent,) = core.submit(request, 1.0)
    other = {"w0": "w1", "w1": "w0"}[sent.worker_id]
    first = TokenDelta(request_id="r", token_ids=(1,), num_cached_tokens=16, queue_s=0.5)
    assert core.handle(make_frame(sent.worker_id, 0, first), 1.1) == [Deliver("r", first)]
    core.handle(make_frame(sent.worker_id, 0, tokens("r", 2, 3)), 1.2)
    (moved,) = core.handle(make_exit(sent.worker_id), 1.3)
    assert (moved.worker_id, moved.message.request.output_token_ids) == (other, [1, 2, 3])
    assert core.num_migrations == 1 and core.in_flight.load("m").num_pending_tokens == 30
    core.check_integrity()
    assert core.handle(make_frame(sent.worker_id, 0, tokens("r", 4)), 1.4) == [], "of the dead life: drawn again"
    again = TokenDelta(request_id="r", token_ids=(4,), num_cached_tokens=0, queue_s=0.1)
    assert core.handle(make_frame(other, 0, again), 1.5) == [Deliver("r", tokens("r", 4))]
    core.check_integrity()
    core.handle(make_exit(other), 1.6)
    core.check_integrity()
    (once_more,) = core.handle(make_hello(sent.worker_id, 1), 2.0)
    assert once_more.message.request.output_token_ids == [1, 2, 3, 4]
    error = error_of(core.handle(make_exit(sent.worker_id, 1), 2.1))
    assert isinstance(error, WorkerLostError) and "3 workers were tried" in error.message


def test_the_only_worker_dies_and_its_request_waits_for_the_restart() -> None:
    core = make_core()
    request = make_request("r")
    core.submit(request, 1.0)
    assert core.handle(make_exit(), 1.2) == []
    with pytest.raises(UnavailableError, match="restarting"):
        core.submit(make_request("s"), 1.3)
    core.check_integrity()
    assert core.handle(make_hello(incarnation=1), 2.0) == [Send("w0", 1, Generate(request, index=1))]
    core.check_integrity()


def test_waiting_for_a_restart_has_a_deadline() -> None:
    core = make_core(OperationsConfig(worker_wait_timeout_s=5.0))
    core.submit(make_request("r"), 1.0)
    core.handle(make_exit(), 2.0)
    assert core.tick(6.9) == []
    core.tick(6.95)
    error = error_of(core.tick(7.0))
    assert isinstance(error, WorkerLostError) and "5 s" in error.message
    core.check_integrity()


def test_no_hope_means_no_waiting() -> None:
    core = make_core(workers=("w0", "w1"))
    core.submit(make_request("r"), 1.0)
    core.handle(make_exit("w0"), 2.0)
    core.handle(make_exit("w1"), 2.0)
    assert core.handle(make_exit("w0", 1, will_restart=False), 3.0) == []
    error = error_of(core.handle(make_exit("w1", 1, will_restart=False), 3.0))
    assert isinstance(error, WorkerLostError) and "no worker of its model is left" in error.message
    core.check_integrity()


def test_a_request_that_kills_workers_is_not_passed_on_for_ever() -> None:
    core = make_core(OperationsConfig(max_attempts=2), workers=("w0", "w1", "w2"))
    (first,) = core.submit(make_request("r"), 1.0)
    (second,) = core.handle(make_exit(first.worker_id), 1.1)
    error = error_of(core.handle(make_exit(second.worker_id), 1.2))
    assert isinstance(error, WorkerLostError) and "2 workers were tried" in error.message
    core.check_integrity()


def test_hello_of_a_new_life_ends_the_old_one_even_without_notice() -> None:
    core = make_core()
    request = make_request("r")
    core.submit(request, 1.0)
    assert core.handle(make_hello(incarnation=1), 2.0) == [Send("w0", 1, Generate(request, index=1))]
    assert core.handle(make_exit(incarnation=0), 2.1) == [], "the notice comes late"
    assert core.fleet.get("w0").state is MemberState.READY
    core.check_integrity()


def test_goodbye_frees_what_the_worker_still_had() -> None:
    core = make_core(workers=("w0", "w1"))
    (sent,) = core.submit(make_request("r"), 1.0)
    goodbye = Goodbye(worker_id=sent.worker_id, incarnation=0)
    assert sent_to(core.handle(goodbye, 1.1)) == [{"w0": "w1", "w1": "w0"}[sent.worker_id]]
    assert core.handle(goodbye, 1.2) == []


def test_a_draining_workers_refusal_moves_the_request() -> None:
    core = make_core(workers=("w0", "w1"))
    (sent,) = core.submit(make_request("r"), 1.0)
    other = {"w0": "w1", "w1": "w0"}[sent.worker_id]
    actions = core.handle(make_frame(sent.worker_id, 0, refusal("r", "unavailable")), 1.1)
    assert sent_to(actions) == [other]
    assert core.fleet.get(sent.worker_id).state is MemberState.DRAINING
    assert sent_to(core.submit(make_request("s"), 1.2)) == [other]
    core.check_integrity()


def test_a_peer_that_is_gone_from_the_wire_is_given_up() -> None:
    core = make_core(workers=("w0", "w1"))
    (sent,) = core.submit(make_request("r"), 1.0)
    assert len(sent_to(core.undeliverable(sent.worker_id, 0, 1.0))) == 1
    assert core.undeliverable(sent.worker_id, 0, 1.0) == []
    assert core.undeliverable("nobody", 0, 1.0) == []
    core.check_integrity()


# -- silence and time --


def test_a_silent_worker_is_replaced_and_its_requests_move() -> None:
    core = make_core(OperationsConfig(heartbeat_timeout_s=5.0), workers=("w0", "w1"))
    (sent,) = core.submit(make_request("r"), 1.0)
    other = {"w0": "w1", "w1": "w0"}[sent.worker_id]
    for now_s in (1.0, 2.0, 3.0, 4.0, 5.0):
        core.handle(make_frame(other, until_s=now_s), now_s)
        assert core.tick(now_s) == []
    replace, moved = core.tick(5.1)
    assert replace == Replace(Unresponsive(sent.worker_id, 0, "silent for 5.1 s"))
    assert sent_to([moved]) == [other]
    late = make_frame(sent.worker_id, 0, tokens("r", 9))
    assert core.handle(late, 5.5) == [Send(sent.worker_id, 0, Introduce(0))], "it lives: it must start over"
    assert core.handle(make_frame(sent.worker_id, until_s=5.6), 5.6) == [], "asked once"
    core.handle(make_hello(sent.worker_id, started_s=5.6), 5.7)
    assert core.fleet.get(sent.worker_id).state is MemberState.READY
    core.check_integrity()


def test_a_frontend_that_slept_blames_nobody() -> None:
    core = make_core(OperationsConfig(heartbeat_timeout_s=5.0))
    core.tick(1.0)
    assert core.tick(61.0) == []
    assert core.fleet.get("w0").state is MemberState.READY


def test_a_worker_that_never_says_hello_is_replaced() -> None:
    core = make_core(OperationsConfig(start_timeout_s=100.0), workers=())
    core.fleet.expect("w0", "m", 0.0)
    for now_s in range(0, 101, 2):
        assert core.tick(float(now_s)) == []
    (replace,) = core.tick(101.0)
    assert isinstance(replace, Replace) and "not ready 101 s after its start" in replace.message.reason
    assert core.tick(102.0) == [], "said once"
    core.handle(make_hello(), 103.0)
    assert core.fleet.get("w0").state is MemberState.READY, "late is better than never"


def test_every_request_has_a_deadline() -> None:
    core = make_core(OperationsConfig(request_timeout_s=10.0))
    core.submit(make_request("r"), 1.0)
    for now_s in range(1, 11):
        core.handle(make_frame(until_s=float(now_s)), float(now_s))
        assert core.tick(float(now_s)) == []
    stop, fail = core.tick(11.0)
    assert stop == Send("w0", 0, Abort("r"))
    assert isinstance(fail.error, DeadlineError) and "10 s" in fail.error.message
    core.check_integrity()


def test_a_stuck_worker_turns_health_red_and_gets_no_more_while_another_is_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S62: it answers, it steps, work waits, and nothing comes of it."""
    core = make_core(OperationsConfig(stall_timeout_s=5.0), workers=("w0", "w1"))
    (sent,) = core.submit(make_request("r"), 0.0)
    other = {"w0": "w1", "w1": "w0"}[sent.worker_id]
    for step in range(1, 8):
        core.handle(make_frame(sent.worker_id, num_waiting=1, steps_total=step, until_s=float(step)), float(step))
        core.tick(float(step))
        health = core.health(float(step))
        assert health.is_healthy is (step <= 5)
    assert f"worker {sent.worker_id}" in health.reasons[0] and "no progress for 7.0 s" in health.reasons[0]
    assert health.is_ready, "the other worker takes requests"
    assert caplog.text.count("no progress") == 1, "said once in the log"
    assert sent_to(core.submit(make_request("s"), 7.0)) == [other]
    assert sent_to(core.submit(make_request("t"), 7.0)) == [other]
    core.handle(make_frame(sent.worker_id, 0, tokens("r", 1), until_s=8.0), 8.0)
    assert core.health(8.0).is_healthy


def test_models_are_kept_apart() -> None:
    core = make_core()
    core.handle(make_hello("x0", model="other"), 0.0)
    assert [sent_to(core.submit(make_request(f"m{i}"), 1.0)) for i in range(2)] == [["w0"], ["w0"]]
    assert sent_to(core.submit(make_request("o", model="other"), 1.0)) == ["x0"]
    assert core.handle(make_exit("w0"), 1.1) == [], "the other model's worker cannot take these"
    assert len(core.in_flight.waiting("m")) == 2 and core.in_flight.waiting("other") == []
    with pytest.raises(UnavailableError):
        core.submit(make_request("n"), 1.2)
    assert sent_to(core.submit(make_request("p", model="other"), 1.2)) == ["x0"]
    assert not core.health(1.2).is_ready and core.health(1.2).is_healthy
    core.check_integrity()


# -- policies of others --


class Broken:
    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        if request.request_id == "raise":
            raise KeyError("oops")
        return Placement("nobody")


@pytest.mark.parametrize(("request_id", "what"), [("raise", "Broken failed: KeyError"), ("r", "chose worker 'nobody'")])
def test_a_broken_policy_costs_its_request_only(request_id: str, what: str) -> None:
    core = DispatchCore(OperationsConfig(), Broken(), Ledger(), RATE)
    core.handle(make_hello(), 0.0)
    error = error_of(core.submit(make_request(request_id), 1.0))
    assert isinstance(error, InternalError) and what in error.message
    assert len(core.in_flight) == 0
    core.check_integrity()


# -- counting and money --


def test_counters_return_to_zero_after_random_aborts() -> None:
    """S31: 64 requests of 1 to 4 chunks, random abort; all end and every count is zero again."""
    rng = random.Random(31)
    core = make_core(workers=("w0", "w1"))
    ids = [f"r{i}" for i in range(64)]
    placed = {i: sent_to(core.submit(make_request(i, num_tokens=rng.randint(1, 64)), 1.0))[0] for i in ids}
    now_s, ended = 1.0, set()
    while core.in_flight.load("m").num_requests:
        now_s += 0.01
        request_id = rng.choice([i for i in ids if i not in ended])
        if rng.random() < 0.3:
            core.cancel(request_id)
            ended.add(request_id)
        delta = tokens(request_id, 1, finish=FinishReason.LENGTH if rng.random() < 0.3 else None)
        frame = make_frame(placed[request_id], 0, TokenDelta(request_id=request_id), delta, until_s=now_s)
        core.handle(frame, now_s)
        if delta.finish_reason:
            ended.add(request_id)
        core.check_integrity()
    assert core.in_flight.load("m").num_pending_tokens == 0
    assert [view.num_in_flight for view in core.fleet.members()] == [0, 0]


def test_what_a_worker_does_after_the_abort_is_overrun() -> None:
    ledger = Ledger()
    core = DispatchCore(OperationsConfig(), Broken(), ledger, RATE)
    core._policy = _Only("w0")
    core.handle(make_hello(), 0.0)
    core.submit(make_request("r"), 1.0)
    step = TokenDelta(request_id="r", token_ids=(1,), seconds=0.25)
    core.handle(_timed(make_frame("w0", 0, step, until_s=1.25), 1.25), 1.25)
    core.cancel("r")
    core.handle(_timed(make_frame("w0", 0, step, until_s=1.5), 0.25), 1.5)
    totals = ledger.totals()
    assert (totals.charged.seconds, totals.lines[Line.OVERRUN].seconds) == (0.25, 0.25)
    assert ledger.request_cost("r").seconds == 0.25


class _Only:
    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        return Placement(self._worker_id)


def _timed(frame, busy_s):
    import msgspec

    return msgspec.structs.replace(frame, busy_s=busy_s, unattributed_s=busy_s - sum(d.seconds for d in frame.deltas))


def test_a_worker_that_dies_before_hello_is_billed_as_lost() -> None:
    ledger = Ledger()
    core = DispatchCore(OperationsConfig(), _Only("w0"), ledger, RATE)
    core.fleet.expect("w0", "m", 0.0)
    core.handle(make_exit(at_s=3.0), 3.0)
    assert ledger.totals("m").lines[Line.LOST].seconds == 3.0


def test_frames_of_a_life_given_up_are_still_paid() -> None:
    ledger = Ledger()
    core = DispatchCore(OperationsConfig(heartbeat_timeout_s=1.0), _Only("w0"), ledger, RATE)
    core.handle(make_hello(), 0.0)
    core.tick(0.5)
    core.tick(1.5)
    core.handle(_timed(make_frame(until_s=2.0), 2.0), 2.0)
    core.handle(make_hello(started_s=2.0), 2.1)
    core.handle(_timed(make_frame(until_s=3.0), 1.0), 3.0)
    assert ledger.totals().lines[Line.UNATTRIBUTED].seconds == 3.0
    assert ledger.check_balance(3.0).is_balanced
