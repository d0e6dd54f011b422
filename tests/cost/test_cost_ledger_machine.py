"""Random fleets against the ledger: whatever happens, the bill is process seconds, and every second has one owner.

A model beside it keeps the truth in whole numbers; the ledger's sums are whole numbers too, so nothing is approximate.
The worker "gang" owns three devices; steps overlap (frames end where a step did); budgets end requests at any time.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tokenmill.core.request import Request, TokenDelta
from tokenmill.core.ticks import deal, to_ticks
from tokenmill.core.wire import StepFrame, WorkerStats
from tokenmill.cost.budgets import BudgetConfig, find_spent
from tokenmill.cost.cells import Cell, Owner
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.requests import Outcome
from tokenmill.cost.shares import StepSpans
from tokenmill.cost.tally import money_of
from tokenmill.cost.totals import NOTHING, OWNED, Line

TICK_S = 2.0**-10
PER_TICK = 2**20  # ledger ticks in one of ours
MAX_ENDED = 3
TICKS = st.integers(0, 5000)
WORKERS = ("w0", "w1", "gang")
REQUESTS = tuple(f"r{i}" for i in range(6))
RATES = {name: DeviceRate(usd_per_hour=0.36 * (i + 1), watts=10.5 * (i + 1)) for i, name in enumerate(WORKERS)}
RATES["gang"] = RATES["gang"].gang(3)
TENANTS = (None, "t1", "t2")
SESSIONS = (None, "s1", "s2", "s3")


def new_ledger() -> Ledger:
    """The first minute is over after a second, so that most runs cross it."""
    ledger = Ledger(max_ended=MAX_ENDED, max_finished=3, epoch_s=59.0)
    ledger.keep_additions()
    return ledger


def covered_s(frame: StepFrame) -> float:
    return frame.busy_s + frame.idle_s + frame.startup_s


class Process:
    """What truly happened in one worker process; only frames that were delivered can be known to anybody."""

    def __init__(self, worker_id: str, incarnation: int, now: int) -> None:
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.started = self.until = now
        self.ended: int | None = None
        self.steps = 0
        self.spans = StepSpans()

    def overlapped_step(self, busy: int, overlap: int) -> float:
        """Seconds of a step that is launched `overlap` before the one before it ends, if one runs, and ends at busy."""
        return self.spans.take((self.until - overlap) * TICK_S, (self.until + busy) * TICK_S)

    def frame(self, shares: dict[str, float], joules: float | None, **ticks: int) -> StepFrame:
        deltas = tuple(
            TokenDelta(request_id=r, token_ids=(1,), seconds=s, prefill_s=s / 4, draft_s=s / 8, rejected_s=s / 16)
            for r, s in shares.items()
        )
        self.steps += 1
        self.until += sum(ticks.values())
        return StepFrame(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            until_s=self.until * TICK_S,
            busy_s=(ticks.get("busy", 0) + ticks.get("unattributed", 0)) * TICK_S,
            idle_s=ticks.get("idle", 0) * TICK_S,
            startup_s=ticks.get("startup", 0) * TICK_S,
            unattributed_s=ticks.get("unattributed", 0) * TICK_S,
            joules=joules,
            deltas=deltas,
            stats=WorkerStats(steps_total=self.steps),
        )


class LedgerMachine(RuleBasedStateMachine):
    """Frames may be held back on the way, delivered in any order, twice, or after the exit; some die with a crash."""

    in_flight = Bundle("in_flight")

    @initialize()
    def start(self) -> None:
        self.ledger = new_ledger()
        self.now = 0
        self.processes: dict[str, Process] = {}
        self.all: list[Process] = []
        self.undelivered: dict[int, StepFrame] = {}
        self.accepted: list[StepFrame] = []
        self.refused = 0
        self.stored = 0
        self.written: list[tuple[int, Owner, Cell]] = []

    # -- the fleet --

    @rule(worker_id=st.sampled_from(WORKERS), ticks=TICKS)
    def launch(self, worker_id: str, ticks: int) -> None:
        self.now += ticks
        old = self.processes.get(worker_id)
        if old is not None and old.ended is None:
            return
        process = Process(worker_id, old.incarnation + 1 if old else 0, self.now)
        self.processes[worker_id] = process
        self.all.append(process)
        self.ledger.hello(worker_id, process.incarnation, f"m-{worker_id}", RATES[worker_id], self.now * TICK_S)

    @rule(worker_id=st.sampled_from(WORKERS))
    def say_hello_again(self, worker_id: str) -> None:
        """An old message that comes again: it does not move the bill."""
        process = self.processes.get(worker_id)
        if process is not None:
            started_s = process.started * TICK_S
            self.ledger.hello(worker_id, process.incarnation, f"m-{worker_id}", RATES[worker_id], started_s)

    @rule(worker_id=st.sampled_from(WORKERS), ticks=TICKS)
    def crash(self, worker_id: str, ticks: int) -> None:
        process = self.processes.get(worker_id)
        if process is None or process.ended is not None:
            return
        self.now = max(self.now, process.until) + ticks
        process.ended = self.now
        self.ledger.exited(worker_id, process.incarnation, self.now * TICK_S)

    # -- frames --

    @rule(
        target=in_flight,
        worker_id=st.sampled_from(WORKERS),
        weights=st.dictionaries(st.sampled_from(REQUESTS), st.integers(0, 512), max_size=4),
        busy=TICKS,
        idle=TICKS,
        unattributed=st.integers(0, 50),
        startup=st.integers(0, 50),
        joules=st.none() | st.integers(0, 1000),
        overlap=st.integers(0, 200),
    )
    def work(
        self,
        worker_id: str,
        weights: dict[str, int],
        busy: int,
        idle: int,
        unattributed: int,
        startup: int,
        joules: int | None,
        overlap: int,
    ) -> Any:
        process = self.processes.get(worker_id)
        if process is None or process.ended is not None:
            return multiple()
        is_following = bool(weights) and process.steps > 0 and process.spans.until_s == process.until * TICK_S
        busy = int(process.overlapped_step(busy, overlap if is_following else 0) / TICK_S) if weights else 0
        shares = dict(zip(weights, [n * TICK_S for n in deal(busy, list(weights.values()))], strict=True))
        frame = process.frame(shares, joules, busy=busy, idle=idle, unattributed=unattributed, startup=startup)
        self.now = max(self.now, process.until)
        self.undelivered[id(frame)] = frame
        return frame

    @rule(frame=consumes(in_flight))
    def deliver(self, frame: StepFrame) -> None:
        """Refused only when its process is so long dead that it is folded into the sums."""
        self.undelivered.pop(id(frame))
        refused = self.ledger.num_refused_frames
        self.ledger.step(frame)
        if self.ledger.num_refused_frames == refused:
            self.accepted.append(frame)
            return
        ended = [p for p in self.all if p.ended is not None]
        process = next(p for p in self.all if (p.worker_id, p.incarnation) == (frame.worker_id, frame.incarnation))
        assert process.ended is not None and len(ended) > MAX_ENDED
        self.refused += to_ticks(covered_s(frame))

    @rule(index=st.integers(0, 10**6))
    def deliver_again(self, index: int) -> None:
        weighty = [frame for frame in self.accepted if frame.deltas or covered_s(frame)]
        if weighty:
            refused = self.ledger.num_refused_frames
            self.ledger.step(msgspec.structs.replace(weighty[index % len(weighty)]))
            assert self.ledger.num_refused_frames == refused + 1

    @rule(worker_id=st.sampled_from(WORKERS), ticks=st.integers(1, 100))
    def broken_clock(self, worker_id: str, ticks: int) -> None:
        frame = StepFrame(worker_id=worker_id, incarnation=0, until_s=self.now * TICK_S, idle_s=-ticks * TICK_S)
        refused = self.ledger.num_refused_frames
        self.ledger.step(frame)
        assert self.ledger.num_refused_frames == refused + 1

    # -- requests --

    @rule(
        request_id=st.sampled_from(REQUESTS),
        tenant=st.sampled_from(TENANTS),
        session=st.sampled_from(SESSIONS),
        parent=st.sampled_from(SESSIONS),
    )
    def begin(self, request_id: str, tenant: str | None, session: str | None, parent: str | None) -> None:
        self.ledger.begin(
            request_id, "m-w0", tenant=tenant, session=session, parent_session=parent, num_prompt_tokens=5
        )

    @rule(usd=st.sampled_from([0.0, 0.1, 1 / 3]), tenant=st.sampled_from(TENANTS))
    def keep_blocks(self, usd: float, tenant: str | None) -> None:
        self.ledger.store("m-w0", usd, tenant=tenant)
        self.stored += money_of(usd)

    @rule()
    def write_down(self) -> None:
        """What the journal gets is what was added: a frontend that dies after it has lost nothing."""
        self.written += self.ledger.take_additions()

    @rule()
    def frontend_restarts(self) -> None:
        """A new ledger reads what was written; processes go on where their bill stopped."""
        self.written += self.ledger.take_additions()
        old, self.ledger = self.ledger, new_ledger()
        self.ledger.restore_cells(self.written)
        self.ledger.restore_lives(old.lives().items())
        self.ledger._folded_balance = old._folded_balance
        self.ledger.num_refused_frames = old.num_refused_frames
        assert self.ledger.totals() == old.totals()

    @rule(request_id=st.sampled_from(REQUESTS), usd=st.sampled_from([0.0, 1e-5, 1e-3]))
    def a_budget_ends_it(self, request_id: str, usd: float) -> None:
        """As the dispatcher does it: what has a spent session in its line of parents ends; what follows is overrun."""
        entry = self.ledger.request(request_id)
        if entry is None or entry.owner.session is None:
            return
        request = Request(request_id=request_id, model="m-w0", prompt_token_ids=[1], session_id=entry.owner.session)
        spent = find_spent(request, BudgetConfig(session_usd=usd), self.ledger, is_running=True)
        line = self.ledger.spending.line_of(entry.owner.session)
        assert (spent is not None) == any(self.ledger.spending.session_usd(name) >= usd for name in line)
        if spent is not None:
            self.ledger.finish(request_id)

    @rule(request_id=st.sampled_from(REQUESTS), is_complete=st.booleans())
    def finish(self, request_id: str, is_complete: bool) -> None:
        cost = self.ledger.finish(request_id, is_complete=is_complete)
        assert self.ledger.request_cost(request_id) == cost
        assert cost.usd >= 0 and cost.seconds >= 0 and cost.joules >= 0

    @rule(request_id=st.sampled_from(REQUESTS), shown=st.none() | st.integers(0, 3))
    def observe(self, request_id: str, shown: int | None) -> None:
        self.ledger.observe(request_id, Outcome(num_output_tokens=shown))

    # -- what always holds --

    @invariant()
    def the_bill_balances(self) -> None:
        """Apart from frames still on their way, every process second has exactly one line."""
        held = sum(to_ticks(covered_s(frame)) for frame in self.undelivered.values())
        balance = self.ledger.check_balance(self.now * TICK_S)
        assert (
            balance.process == sum((self.now if p.ended is None else p.ended) - p.started for p in self.all) * PER_TICK
        )
        assert balance.unexplained <= held + self.refused
        assert self.ledger.totals().whole.ticks == balance.explained

    @invariant()
    def every_line_is_what_the_frames_said(self) -> None:
        lines = self.ledger.totals().lines
        assert lines[Line.IDLE].ticks == sum(to_ticks(f.idle_s) for f in self.accepted)
        assert lines[Line.STARTUP].ticks == sum(to_ticks(f.startup_s) for f in self.accepted)
        assert lines[Line.UNATTRIBUTED].ticks == sum(to_ticks(f.unattributed_s) for f in self.accepted)
        charged = self.ledger.totals().charged.ticks + lines[Line.OVERRUN].ticks
        assert charged == sum(to_ticks(f.busy_s - f.unattributed_s) for f in self.accepted)

    @invariant()
    def the_meter_is_used_where_there_is_one(self) -> None:
        whole = self.ledger.totals().whole
        metered = [f for f in self.accepted if f.joules is not None and covered_s(f) > 0]
        assert whole.measured_nj == sum(int(f.joules or 0) * 10**9 for f in metered)
        assert whole.metered_ticks == sum(to_ticks(covered_s(f)) for f in metered)

    @invariant()
    def dollars_and_devices_follow_seconds(self) -> None:
        for worker_id, rate in RATES.items():
            whole = self.ledger.totals(f"m-{worker_id}").whole
            stored = self.stored if worker_id == "w0" else 0
            assert whole.money == whole.ticks * rate.units.pico_usd_per_hour + stored
            assert whole.watts_energy == whole.ticks * rate.units.micro_watts
            assert whole.device_ticks == whole.ticks * rate.num_devices

    @invariant()
    def the_parts_are_the_whole(self) -> None:
        """Every way to cut the bill adds up to it, to the last unit."""
        whole = self.ledger.totals()
        assert sum((cell.freeze() for _, _, cell in self.ledger.cells()), NOTHING) == whole
        by_tenant = sum(self.ledger.spending._tenants.values())
        owned = sum(cell.freeze().of(OWNED).money for _, owner, cell in self.ledger.cells() if owner.tenant is not None)
        assert by_tenant == owned

    @invariant()
    def counts_are_possible(self) -> None:
        counts = self.ledger.totals().counts
        assert 0 <= counts.num_good_tokens <= counts.num_output_tokens
        assert 0 <= counts.num_good_requests <= counts.num_requests
        assert min(counts.num_overrun_tokens, counts.num_prompt_tokens) >= 0

    def teardown(self) -> None:
        """When every process has ended and every frame is in, nothing at all is unexplained."""
        if not hasattr(self, "ledger"):
            return
        for frame in list(self.undelivered.values()):
            self.deliver(frame)
        for worker_id in WORKERS:
            self.crash(worker_id, 7)
        balance = self.ledger.check_balance(self.now * TICK_S)
        assert balance.unreported == 0
        assert balance.unexplained <= self.refused
        if self.refused == 0:
            process = sum((p.ended or 0) - p.started for p in self.all) * PER_TICK
            assert self.ledger.totals().whole.ticks == process


LedgerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
