"""The production worker loop, scheduler and wire against the ledger, on virtual time: the bill is exact to the end.

Nothing here is told to the ledger but what a real frontend would hear; a crash cuts the stream in mid-flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tokenmill.core.clock import ManualClock
from tokenmill.core.request import Request, SamplingParams
from tokenmill.core.step import SequencePlan, SequenceResult
from tokenmill.core.wire import Abort, Generate, Hello, StepFrame, ToFrontend, ToWorker, decode_to_frontend, encode
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.totals import Line
from tokenmill.engine.config import EngineConfig
from tokenmill.engine.engine import _rows
from tokenmill.engine.runners.step_times import LinearStepTime
from tokenmill.engine.simulated import simulated_engine
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.worker.loop import WorkerLoop

RATE = DeviceRate(usd_per_hour=3600.0, watts=10.0)  # dollars are seconds
START_S, READY_S = 100.0, 103.0


@dataclass
class FakeFrontend:
    """Link and lifeline of one worker: hands out messages by virtual time, and listens."""

    clock: ManualClock
    schedule: list[tuple[float, ToWorker]]
    end_s: float
    heard: list[ToFrontend] = field(default_factory=list)

    def receive(self, timeout_s: float) -> list[ToWorker]:
        """A wait ends early when a message comes."""
        due_s = min([self.clock.now() + timeout_s, *(at_s for at_s, _ in self.schedule)])
        self.clock.advance(max(0.0, due_s - self.clock.now()))
        ready = [message for at_s, message in self.schedule if at_s <= self.clock.now()]
        self.schedule = [(at_s, message) for at_s, message in self.schedule if at_s > self.clock.now()]
        return ready

    def send(self, message: ToFrontend) -> None:
        self.heard.append(decode_to_frontend(encode(message)))

    def was_lost(self) -> bool:
        return False

    def close(self, linger_s: float) -> None: ...

    def wants_drain(self) -> bool:
        return False

    def wants_stop(self) -> bool:
        return self.clock.now() >= self.end_s


def request(request_id: str, num_prompt_tokens: int, max_tokens: int) -> Request:
    prompt = [1 + i % 100 for i in range(num_prompt_tokens)]
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(request_id=request_id, model="counting", prompt_token_ids=prompt, sampling=sampling)


def run_worker(schedule: list[tuple[float, ToWorker]], end_s: float) -> list[ToFrontend]:
    clock = ManualClock(START_S)
    config = EngineConfig(max_num_batched_tokens=64)
    engine = simulated_engine(config, clock=clock, pace=clock.advance, step_time=LinearStepTime(0.01, 1e-3))
    frontend = FakeFrontend(clock, schedule, end_s)
    clock.advance(READY_S - START_S)
    WorkerLoop(
        engine,
        frontend,
        frontend,
        worker_id="w",
        incarnation=0,
        pid=1,
        started_s=START_S,
        config=OperationsConfig(),
        clock=clock,
    ).run()
    return frontend.heard


def book(ledger: Ledger, heard: list[ToFrontend]) -> float:
    """Feed what was heard; returns the end of the last frame."""
    until_s = START_S
    for message in heard:
        if isinstance(message, Hello):
            ledger.hello(message.worker_id, message.incarnation, message.card.name, RATE, message.started_s)
        elif isinstance(message, StepFrame):
            ledger.step(message)
            until_s = max(until_s, message.until_s)
    return until_s


TRAFFIC: list[tuple[float, ToWorker]] = [
    (105.0, Generate(request("long", 500, 20))),  # eight chunks of prompt
    (105.1, Generate(request("short", 10, 20))),
    (105.2, Generate(request("left", 10, 2000))),
    (106.0, Abort("left")),
    (110.0, Generate(request("late", 10, 5))),
]


def test_every_second_of_a_worker_is_on_the_bill() -> None:
    ledger = Ledger()
    heard = run_worker(list(TRAFFIC), end_s=115.0)
    until_s = book(ledger, heard)
    balance = ledger.check_balance(until_s)
    assert balance.process_s == pytest.approx(until_s - START_S)
    assert balance.unexplained_s == pytest.approx(0.0, abs=1e-9)
    totals = ledger.totals()
    assert totals.whole.usd == pytest.approx(until_s - START_S)
    assert totals.lines[Line.STARTUP].seconds == pytest.approx(READY_S - START_S)
    assert totals.lines[Line.IDLE].seconds > 5.0
    assert totals.charged.seconds > 0.5
    assert ledger.num_refused_frames == 0


def test_requests_pay_for_the_work_they_caused() -> None:
    ledger = Ledger()
    book(ledger, run_worker(list(TRAFFIC), end_s=115.0))
    cost = {name: ledger.finish(name).seconds for name in ("long", "short", "left", "late")}
    assert cost["long"] > cost["short"] > 0
    # Alone in its steps: 10 prompt rows at once, then 4 single rows, each step with its fixed part.
    assert cost["late"] == pytest.approx((0.01 + 0.010) + 4 * (0.01 + 0.001))
    assert sum(cost.values()) == pytest.approx(ledger.totals().charged.seconds)


@pytest.mark.parametrize("num_heard", [1, 2, 5, 20, 60])
def test_a_crash_anywhere_leaves_a_whole_bill(num_heard: int) -> None:
    """kill -9: the frames after it were never sent; the supervisor tells when the process ended."""
    ledger = Ledger()
    heard = run_worker(list(TRAFFIC), end_s=115.0)[:num_heard]
    until_s = book(ledger, heard)
    ledger.exited("w", 0, until_s + 0.7)
    balance = ledger.check_balance(until_s + 50.0)
    assert balance.process_s == pytest.approx(until_s + 0.7 - START_S)
    assert balance.unexplained_s == pytest.approx(0.0, abs=1e-9)
    assert ledger.totals().lines[Line.LOST].seconds == pytest.approx(0.7)
    assert ledger.totals().whole.usd == pytest.approx(until_s + 0.7 - START_S)


def test_work_for_an_aborted_request_is_overrun_not_charged() -> None:
    """The frontend is done with "left" before the worker hears of it."""
    ledger = Ledger()
    heard = run_worker(list(TRAFFIC), end_s=115.0)
    frames = [m for m in heard if isinstance(m, StepFrame)]
    book(ledger, [m for m in heard if isinstance(m, Hello)])
    for frame in frames:
        ledger.step(frame)
        if frame.until_s >= 105.5:
            ledger.finish("left", is_complete=False)
    overrun = ledger.totals().lines[Line.OVERRUN].seconds
    assert 0 < overrun < 0.5
    assert ledger.totals().counts.num_overrun_tokens > 0
    assert ledger.check_balance(frames[-1].until_s).unexplained_s == pytest.approx(0.0, abs=1e-9)


def test_what_a_request_paid_is_told_by_kind_of_work() -> None:
    """Alone in its steps: the step with its ten prompt rows is prefill, the four after it are decoding."""
    ledger = Ledger()
    book(ledger, run_worker(list(TRAFFIC), end_s=115.0))
    by_line = ledger.finish("late").by_line
    assert by_line == {
        Line.PREFILL: pytest.approx(0.01 + 0.010),
        Line.DECODE: pytest.approx(4 * (0.01 + 0.001)),
    }
    totals = ledger.totals()
    assert totals.counts.num_computed_tokens == 500 + 3 * 10
    assert totals.lines[Line.PREFILL].seconds > 0.5


@pytest.mark.parametrize(
    ("computed", "scheduled", "drafts", "accepted", "is_sampling", "expected"),
    [
        (0, 8, 0, 8, False, (8, 8, 0)),  # a chunk of the prompt of 10
        (8, 2, 0, 2, True, (2, 2, 0)),  # its end: the last prompt row draws the first token
        (12, 1, 0, 1, True, (1, 0, 0)),  # decoding
        (12, 5, 4, 3, True, (5, 0, 2)),  # four drafts, two stay
        (12, 5, 4, 5, True, (5, 0, 0)),  # all stay
        (0, 13, 0, 13, True, (13, 12, 0)),  # after a preemption: what it had is computed again, the last row decodes
        (0, 9, 0, 9, False, (9, 9, 0)),  # a chunk of that
    ],
)
def test_rows_of_a_step_are_told_apart(
    computed: int, scheduled: int, drafts: int, accepted: int, is_sampling: bool, expected: tuple[int, int, int]
) -> None:
    plan = SequencePlan("r", computed, scheduled, is_sampling, {}, num_draft_tokens=drafts)
    got = SequenceResult("r", (1,), num_accepted_tokens=accepted, num_draft_tokens=drafts)
    rows = _rows(plan, got, num_prompt_tokens=10)
    assert (rows.num_tokens, rows.num_prefill, rows.num_rejected) == expected
