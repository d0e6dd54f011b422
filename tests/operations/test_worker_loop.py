"""The worker's loop over the counting engine on virtual time: reports, refusals, drain, loss, failure."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.operations.ops_fakes import FakeLifeline, FakeLink, make_request
from tokenmill.core.clock import ManualClock
from tokenmill.core.request import FinishReason, TokenDelta
from tokenmill.core.ticks import on_grid, to_ticks
from tokenmill.core.wire import Abort, Drain, Generate, Goodbye, Hello, Introduce, StepFrame
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import Engine
from tokenmill.engine.simulated import simulated_engine
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker.loop import WorkerLoop
from tokenmill.operations.worker.meter import TimeMeter

STARTED_S = 100.0
READY_S = 103.0


class Bench:
    """A loop with everything around it in the test's hands."""

    def __init__(
        self,
        engine_config: EngineConfig | None = None,
        num_turns: int = 1000,
        read_joules: Callable[[], float] | None = None,
        **config: float,
    ) -> None:
        self.clock = ManualClock(READY_S)
        self.engine: Engine = simulated_engine(
            engine_config or EngineConfig(max_num_batched_tokens=32), clock=self.clock, pace=self.clock.advance
        )
        self.link = FakeLink(self.clock)
        self.lifeline = FakeLifeline(num_turns)
        self.loop = WorkerLoop(
            self.engine,
            self.link,
            self.lifeline,
            worker_id="w0",
            incarnation=2,
            pid=7,
            started_s=STARTED_S,
            config=OperationsConfig(**config),  # type: ignore[arg-type]
            clock=self.clock,
            read_joules=read_joules,
        )

    def run(self, *inbox: list) -> list[StepFrame]:
        self.link.inbox = list(inbox)
        self.loop.run()
        return self.link.frames()

    def deltas(self, request_id: str) -> list[TokenDelta]:
        return [delta for frame in self.link.frames() for delta in frame.deltas if delta.request_id == request_id]

    def token_ids(self, request_id: str) -> list[int]:
        return [token_id for delta in self.deltas(request_id) for token_id in delta.token_ids]


def generate(request_id: str, **fields: int) -> Generate:
    return Generate(make_request(request_id, **fields))


def test_it_says_hello_then_reports_its_start() -> None:
    bench = Bench(num_turns=0)
    (frame, last) = bench.run()
    hello, *_, goodbye = bench.link.sent
    assert isinstance(hello, Hello)
    assert (hello.worker_id, hello.incarnation, hello.pid, hello.started_s) == ("w0", 2, 7, STARTED_S)
    assert hello.card == bench.engine.card
    assert (frame.startup_s, frame.until_s, frame.busy_s, frame.idle_s) == (READY_S - STARTED_S, READY_S, 0.0, 0.0)
    assert goodbye == Goodbye(worker_id="w0", incarnation=2)
    assert last.until_s == READY_S


def test_requests_are_counted_out_token_by_token() -> None:
    """S32: the counting engine shows any doubled or missing token."""
    bench = Bench()
    bench.run([generate("a", num_tokens=4, max_tokens=5)], [generate("b", num_tokens=70, max_tokens=3)], [Drain()])
    assert bench.token_ids("a") == [5, 6, 7, 8, 9]
    assert bench.token_ids("b") == [71, 72, 73]
    assert bench.deltas("b")[-1].finish_reason is FinishReason.LENGTH
    assert bench.deltas("a")[0].num_cached_tokens == 0


def test_every_second_is_reported_once() -> None:
    bench = Bench(num_turns=60)
    frames = bench.run([], [generate("a", num_tokens=100, max_tokens=9)], [generate("b")])
    mark_s = STARTED_S
    for frame in frames:
        spent_s = frame.busy_s + frame.idle_s + frame.startup_s
        assert math.isclose(frame.until_s, mark_s + spent_s, abs_tol=1e-9), f"{frame}"
        assert math.isclose(frame.busy_s, frame.unattributed_s + sum(d.seconds for d in frame.deltas), abs_tol=1e-9)
        mark_s = frame.until_s
    assert mark_s == bench.clock.now()
    assert sum(frame.idle_s for frame in frames) > 10, "waiting is idle"
    assert sum(delta.seconds for delta in bench.deltas("a")) > 0


def test_one_frame_per_step_and_heartbeats_when_idle() -> None:
    bench = Bench(num_turns=12)
    frames = bench.run([generate("a", max_tokens=3)])
    assert [len(frame.deltas) for frame in frames[1:4]] == [1, 1, 1]
    idle = frames[4:-1]
    assert len(idle) == 8
    assert all(math.isclose(frame.idle_s, 0.5) for frame in idle)
    assert frames[3].stats.num_running == 0 and frames[3].stats.generation_tokens_total == 3
    assert {frame.num_received for frame in frames[1:]} == {1}


def test_a_wait_never_lasts_longer_than_the_next_heartbeat() -> None:
    bench = Bench(num_turns=20)
    bench.run([], [], [generate("a", max_tokens=2)])
    assert max(bench.link.waits) <= 0.5
    assert 0.0 in bench.link.waits, "with work to do it only looks"


def test_refusals_are_typed_and_touch_nobody_else() -> None:
    bench = Bench()
    too_long = generate("long", num_tokens=5000)
    bench.run([generate("a", max_tokens=3), too_long, generate("a")], [Drain()])
    (refused,) = bench.deltas("long")
    assert refused.finish_reason is FinishReason.ERROR and refused.error[0] == "context_length_exceeded"
    assert bench.token_ids("a") == [5, 6, 7]
    assert [delta.error[0] for delta in bench.deltas("a") if delta.error] == ["invalid_request"]


def test_a_refusal_alone_is_reported_at_once() -> None:
    bench = Bench(num_turns=2)
    frames = bench.run([generate("long", num_tokens=5000)])
    assert frames[1].deltas[0].request_id == "long"
    assert frames[1].until_s == READY_S


@pytest.mark.parametrize("num_steps", [0, 1, 3, 6])
def test_abort_frees_at_once_at_every_stage(num_steps: int) -> None:
    """S57: cancelled while queued, between prompt chunks, while decoding: the very next frame shows nothing in use."""
    bench = Bench(num_turns=12)
    steps = [[]] * num_steps
    bench.run([generate("a", num_tokens=100, max_tokens=50)], *steps, [Abort("a")])
    frame = bench.link.frames()[num_steps + 1]
    assert (frame.stats.num_running, frame.stats.num_waiting, frame.stats.kv_usage) == (0, 0, 0.0)
    bench.engine.check_integrity()
    assert len(bench.deltas("a")) == num_steps


def test_abort_around_the_last_prompt_chunk_leaves_nothing() -> None:
    """S59: the abort arrives just before, with, and just after the step that finishes the prompt; 200 requests."""
    inbox: list[list] = []
    for index in range(200):
        gap = index % 4  # a prompt of 70 tokens takes three chunks of 32
        inbox += [[generate(f"r{index}", num_tokens=70, max_tokens=9)], *[[]] * gap, [Abort(f"r{index}")]]
    bench = Bench(num_turns=5000)
    bench.run(*inbox, [Drain()])
    assert not bench.engine.has_work()
    assert bench.engine.stats().kv_usage == 0.0
    bench.engine.check_integrity()


def test_the_first_request_ever_is_aborted_and_the_second_served() -> None:
    """S60"""
    bench = Bench()
    bench.run([generate("a"), Abort("a")], [Abort("never seen")], [generate("b", max_tokens=2)], [Drain()])
    assert bench.token_ids("a") == [] and bench.token_ids("b") == [5, 6]


def test_abort_and_the_same_id_again() -> None:
    bench = Bench()
    bench.run([generate("a", max_tokens=50)], [], [Abort("a"), generate("a", max_tokens=2)], [Drain()])
    assert bench.token_ids("a")[-2:] == [5, 6]


def test_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    bench = Bench()
    bench.run([generate("a", max_tokens=6)], [Drain()], [generate("b")])
    assert bench.token_ids("a") == [5, 6, 7, 8, 9, 10]
    (refused,) = bench.deltas("b")
    assert refused.error[0] == "unavailable"
    assert isinstance(bench.link.sent[-1], Goodbye)


def test_a_signal_drains_like_the_message() -> None:
    bench = Bench()
    bench.lifeline.drain = True
    bench.run()
    assert len(bench.link.frames()) == 2


def test_stop_leaves_at_once_and_says_so() -> None:
    bench = Bench(num_turns=3)
    bench.run([generate("a", max_tokens=1000)])
    assert len(bench.token_ids("a")) == 2
    assert isinstance(bench.link.sent[-1], Goodbye)


def test_a_lost_frontends_requests_are_dropped() -> None:
    bench = Bench(num_turns=8)
    bench.link.inbox = [[generate("a", max_tokens=1000)], []]
    receive = bench.link.receive

    def lose_then_receive(timeout_s: float) -> list:
        bench.link.is_lost = len(bench.link.waits) == 4
        return receive(timeout_s)

    bench.link.receive = lose_then_receive
    bench.loop.run()
    assert not bench.engine.has_work() and len(bench.token_ids("a")) == 3
    bench.engine.check_integrity()


def test_introduce_starts_over_without_billing_a_second_twice() -> None:
    bench = Bench(num_turns=8)
    frames = bench.run([generate("a", max_tokens=1000)], [], [Introduce()], [generate("b", max_tokens=1)])
    first, second = [message for message in bench.link.sent if isinstance(message, Hello)]
    at = bench.link.sent.index(second)
    before = next(message for message in reversed(bench.link.sent[:at]) if isinstance(message, StepFrame))
    after = next(message for message in bench.link.sent[at:] if isinstance(message, StepFrame))
    assert second.started_s == before.until_s and first.started_s == STARTED_S
    assert math.isclose(after.until_s - after.busy_s - after.idle_s, second.started_s)
    assert after.num_received == 0 and frames[-1].num_received == 1
    assert bench.token_ids("b") == [5]


def test_an_engine_that_fails_has_its_time_reported_first() -> None:
    bench = Bench()
    engine_step = bench.engine.step

    def failing_step() -> list[TokenDelta]:
        if bench.clock.now() > READY_S + 0.005:
            bench.clock.advance(0.25)
            raise RuntimeError("numbers ran out")
        return engine_step()

    bench.engine.step = failing_step
    with pytest.raises(RuntimeError, match="numbers ran out"):
        bench.run([generate("a", max_tokens=1000)])
    *_, frame, goodbye = bench.link.sent
    assert frame.busy_s == frame.unattributed_s >= 0.25 and frame.until_s == on_grid(bench.clock.now())
    assert isinstance(goodbye, Goodbye)


def test_integrity_is_checked_when_idle_after_work() -> None:
    bench = Bench(num_turns=100, integrity_interval_s=2.0)
    checks: list[float] = []
    check = bench.engine.check_integrity
    bench.engine.check_integrity = lambda: (checks.append(bench.clock.now()), check())
    bench.run([], [generate("a")], *[[]] * 40, [generate("b")])
    assert len(checks) == 2, "once after each work"
    assert checks[0] >= STARTED_S + 2.0


def test_a_broken_engine_found_when_idle_ends_the_worker() -> None:
    bench = Bench(num_turns=100, integrity_interval_s=1.0)

    def broken() -> None:
        raise AssertionError("a block is lost")

    bench.engine.check_integrity = broken
    with pytest.raises(AssertionError, match="a block is lost"):
        bench.run([generate("a")])


def test_joules_are_those_since_the_last_frame() -> None:
    readings = iter(range(5, 1000, 5))
    bench = Bench(num_turns=4, read_joules=lambda: float(next(readings)))
    assert [frame.joules for frame in bench.run()] == [5.0] * 6
    assert Bench(num_turns=0).run()[0].joules is None


def test_a_clock_that_runs_back_tells_nothing_new() -> None:
    """The mark stays where it was until the clock has passed it again: no second is counted twice or made up."""
    meter = TimeMeter(5.0)
    meter.busy(6.0)
    meter.idle(5.5)
    meter.busy(6.25)
    interval = meter.take()
    assert (interval.until_s, interval.busy_s, interval.idle_s) == (6.25, 1.25, 0.0)


def test_stamps_are_whole_ticks_and_add_up_exactly() -> None:
    meter, busy, idle = TimeMeter(0.1), 0, 0
    for i in range(1, 1000):
        (meter.busy if i % 3 else meter.idle)(0.1 + i / 7)
        interval = meter.take()
        busy, idle = busy + to_ticks(interval.busy_s), idle + to_ticks(interval.idle_s)
    assert busy + idle == to_ticks(interval.until_s) - to_ticks(0.1)
