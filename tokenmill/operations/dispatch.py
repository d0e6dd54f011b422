"""What the dispatcher decides: events in (requests, frames, exits, time), actions out. Pure.

The asyncio shell around it is dispatcher.py; the twin drives the same class on virtual time. Every request that
`submit` accepts ends exactly once: by a Deliver with a finish_reason, by a Fail, or by `cancel`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import msgspec

from tokenmill.core.errors import (
    BadRequestError,
    DeadlineError,
    InternalError,
    TokenmillError,
    UnavailableError,
    WorkerLostError,
    from_code,
)
from tokenmill.core.kv_events import KVEvents, KVSnapshot
from tokenmill.core.request import FinishReason, Request, TokenDelta
from tokenmill.core.wire import (
    Abort,
    Generate,
    Goodbye,
    Hello,
    Introduce,
    ReportCache,
    StepFrame,
    ToFrontend,
    Unresponsive,
    WorkerExited,
)
from tokenmill.cost.budgets import BudgetConfig, Spent, find_spent
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.actions import Action, Deliver, Fail, Replace, Send
from tokenmill.operations.admission import admit
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.deltas import has_news, merge_deltas
from tokenmill.operations.fleet import Fleet, FrameOrigin
from tokenmill.operations.health import Health, is_stalled, judge, stall_reason
from tokenmill.operations.in_flight import Flight, InFlight
from tokenmill.operations.members import FleetSnapshot, MemberState
from tokenmill.operations.router.base import Placement, RouterPolicy, reads_knowledge
from tokenmill.operations.router.watch import RoutingWatch

_log = logging.getLogger(__name__)

#: A tick that comes this late means that this very process slept: nobody else was silent.
_OVERSLEPT_S = 2.0


class DispatchCore:
    """
    policy   places the requests of every model
    ledger   hears of every frame, exit and end of a request
    rate     price and watts of one worker (of one rank of a gang)
    budgets  what sessions and tenants may spend
    """

    def __init__(
        self,
        config: OperationsConfig,
        policy: RouterPolicy,
        ledger: Ledger,
        rate: DeviceRate,
        budgets: BudgetConfig | None = None,
    ) -> None:
        self.fleet = Fleet()
        self.in_flight = InFlight()
        self.is_draining = False
        self.num_migrations = 0
        self._config = config
        self._policy = policy
        self._ledger = ledger
        self._rate = rate
        self._budgets = budgets or BudgetConfig()
        self.watch: RoutingWatch | None = None  # somebody reads what it would know
        if reads_knowledge(policy):
            self.watch = RoutingWatch(
                has_events=config.kv_events,
                max_blocks=config.max_indexed_blocks,
                usd_per_s=rate.usd_per_hour / 3600,
                slo=ledger.slo,
            )
        self._last_tick_s: float | None = None
        self._stalled: set[str] = set()
        self._calm_until_s: dict[str, float] = {}

    # -- consumers --

    def submit(self, request: Request, now_s: float) -> list[Action]:
        """Admit and place a request, or raise the typed error that says why not."""
        if self.in_flight.get(request.request_id) is not None:
            raise BadRequestError(f"request id {request.request_id!r} is in use: choose another", param="request_id")
        spent = find_spent(request, self._budgets, self._ledger)
        if spent is not None and self._budgets.when_spent == "degrade":
            request = msgspec.structs.replace(request, priority=request.priority + self._budgets.degraded_by)
            spent = None
        admit(
            request,
            self.fleet.supply(request.model),
            self.in_flight.load(request.model),
            self._config,
            models=self.fleet.models(),
            is_draining=self.is_draining,
            spent=spent,
        )
        flight = Flight(request, deadline_s=now_s + self._config.request_timeout_s)
        self.in_flight.add(flight)
        self._ledger.begin(
            request.request_id,
            request.model,
            tenant=request.tenant,
            session=request.session_id,
            parent_session=request.parent_session_id,
            num_prompt_tokens=0 if request.choice_index else len(request.prompt_token_ids),
        )
        return self._place(flight, now_s)

    def cancel(self, request_id: str) -> list[Action]:
        """The consumer left: forget the request and stop its worker at once. Nothing to do when it has ended."""
        flight = self.in_flight.get(request_id)
        return [] if flight is None else self._stop(flight, FinishReason.ABORT)

    def abort(self, request_id: str) -> list[Action]:
        """Like `cancel`, for a consumer that still reads: its iteration ends with finish_reason abort."""
        flight = self.in_flight.get(request_id)
        if flight is None:
            return []
        delta = TokenDelta(request_id=request_id, finish_reason=FinishReason.ABORT)
        return [*self._stop(flight, FinishReason.ABORT), Deliver(request_id, delta)]

    def refuse(self, request_id: str, error: TokenmillError) -> list[Action]:
        """End a request with an error of the frontend's own making, e.g. a consumer that does not read."""
        flight = self.in_flight.get(request_id)
        return [] if flight is None else self._stop_with(flight, error)

    # -- the fleet --

    def handle(self, message: ToFrontend, now_s: float) -> list[Action]:
        """One message of a worker or of the supervisor."""
        match message:
            case StepFrame():
                return self._frame(message, now_s)
            case Hello():
                return self._hello(message, now_s)
            case Goodbye():
                return self._goodbye(message, now_s)
            case WorkerExited():
                return self._exited(message, now_s)
            case KVEvents() | KVSnapshot():
                return self._cache(message, now_s)

    def undeliverable(self, worker_id: str, incarnation: int, now_s: float) -> list[Action]:
        """The wire has no such peer (any more)."""
        view = self.fleet.get(worker_id)
        if view is None or view.incarnation != incarnation or view.state is MemberState.LOST:
            return []
        return self._give_up(worker_id, "its connection is gone", now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Let time pass: deadlines, silence, waits. Call it several times a second, after reading the wire dry."""
        self._forgive(now_s)
        self._log_stalls(now_s)
        if self.watch is not None:
            self.watch.sweep()
        return [*self._ask_caches(now_s), *self._check_workers(now_s), *self._check_flights(now_s)]

    def reprice(self, rate: DeviceRate) -> None:
        """Time reported from now on costs this much per worker."""
        self._rate = rate
        self._ledger.reprice(rate)
        if self.watch is not None:
            self.watch.reprice(rate.usd_per_hour / 3600)

    def health(self, now_s: float, failure: str | None = None) -> Health:
        unaware = {} if self.watch is None else self.watch.unaware()
        return judge(
            self.fleet.members(),
            self._config,
            now_s,
            is_draining=self.is_draining,
            failure=failure,
            unaware=unaware,
        )

    def check_integrity(self) -> None:
        """Assert that the fleet's load is that of the requests in flight."""
        self.fleet.check_integrity()
        self.in_flight.check_integrity()
        if self.watch is not None:
            self.watch.check_integrity()
        for view in self.fleet.members():
            flights = self.in_flight.of_worker(view.worker_id)
            assert view.num_in_flight == len(flights), f"{view}: {len(flights)} in flight"
            assert view.num_pending_tokens == sum(f.num_pending_tokens for f in flights), f"{view}"

    # -- messages --

    def _hello(self, hello: Hello, now_s: float) -> list[Action]:
        if not self.fleet.hello(hello, now_s):
            return []
        rate = self._rate.gang(hello.num_ranks)
        self._ledger.hello(
            hello.worker_id,
            hello.incarnation,
            hello.card.name,
            rate,
            hello.started_s,
            process_started_s=hello.process_started_s,
        )
        actions = self._evacuate(hello.worker_id, "was restarted", now_s)
        if self.watch is not None:
            self.watch.hello(hello)
            actions += self._ask_caches(now_s)  # before it is given anything
        for flight in self.in_flight.waiting(hello.card.name):
            actions += self._place(flight, now_s)
        return actions

    def _frame(self, frame: StepFrame, now_s: float) -> list[Action]:
        origin = self.fleet.frame(frame, now_s)
        if origin is not FrameOrigin.UNKNOWN:
            self._ledger.step(frame)
        if origin is FrameOrigin.CURRENT:
            if self.watch is not None:
                self.watch.frame(frame)
            actions: list[Action] = []
            for delta in frame.deltas:
                actions += self._delta(frame, delta, now_s)
            return actions
        if origin in (FrameOrigin.STALE, FrameOrigin.COPY):
            return []
        actions = (
            self._give_up(frame.worker_id, "messages of it were lost on the way", now_s)
            if (origin is FrameOrigin.GAP)
            else []
        )
        if self.fleet.should_introduce(frame, now_s):
            actions.append(Send(frame.worker_id, frame.incarnation, Introduce(frame.session)))
        return actions

    def _goodbye(self, goodbye: Goodbye, now_s: float) -> list[Action]:
        return self.undeliverable(goodbye.worker_id, goodbye.incarnation, now_s)

    def _exited(self, notice: WorkerExited, now_s: float) -> list[Action]:
        view = self.fleet.get(notice.worker_id)
        self._ledger.exited(
            notice.worker_id,
            notice.incarnation,
            notice.at_s,
            started_s=notice.started_s,
            model=view.model if view else None,
            rate=self._rate,
        )
        if view is None or not self.fleet.exited(notice, now_s):
            return []
        actions = self._evacuate(notice.worker_id, f"died (exit code {notice.exit_code})", now_s)
        if not self.fleet.can_return(view.model):
            for flight in self.in_flight.waiting(view.model):
                actions += self._wait(flight, now_s)
        return actions

    def _cache(self, message: KVEvents | KVSnapshot, now_s: float) -> list[Action]:
        if self.watch is None:
            return []
        self.watch.events(message)
        return self._ask_caches(now_s)

    def _ask_caches(self, now_s: float) -> list[Action]:
        """Workers of whose cache something was missed, or nothing was told yet."""
        actions: list[Action] = []
        for worker_id in [] if self.watch is None else self.watch.wanted(now_s):
            view = self.fleet.get(worker_id)
            if view is not None and view.state in (MemberState.READY, MemberState.DRAINING):
                actions.append(Send(worker_id, view.incarnation, ReportCache()))
        return actions

    # -- tokens --

    def _delta(self, frame: StepFrame, delta: TokenDelta, now_s: float) -> list[Action]:
        flight = self.in_flight.get(delta.request_id)
        if flight is None or flight.worker_id != frame.worker_id or frame.num_received < flight.send_index:
            return []  # overrun of a request that was aborted or moved: billed, not shown
        if delta.error is not None and delta.error[0] == UnavailableError.code and not flight.has_started:
            return self._elsewhere(flight, "takes no new requests", now_s)
        if self.watch is not None and flight.is_pending:
            self.watch.computed(flight.request, delta)
        if flight.token_ids and delta.num_cached_tokens is not None:
            delta = msgspec.structs.replace(delta, num_cached_tokens=None, queue_s=None)  # of its first start, only
        delta = merge_deltas(flight.held, delta)
        flight.held = None
        spent = None if delta.finish_reason is not None else self._must_stop(flight)
        if spent is not None:
            return self._cut(flight, delta, spent)
        if not has_news(delta):
            flight.held = delta
            return []
        self._start(flight)
        if delta.finish_reason is None:
            flight.token_ids += delta.token_ids
            return [Deliver(flight.request_id, delta)]
        self._end(flight, delta.finish_reason)
        if delta.finish_reason is FinishReason.ERROR:
            code, message = delta.error or (InternalError.code, "the worker gave no reason")
            return [Fail(flight.request_id, from_code(code, message, delta.error_param))]
        return [Deliver(flight.request_id, delta)]

    def _must_stop(self, flight: Flight) -> Spent | None:
        """The budget that this request has just used up, where that ends answers."""
        if self._budgets.when_spent != "stop":
            return None
        return find_spent(flight.request, self._budgets, self._ledger, is_running=True)

    def _cut(self, flight: Flight, delta: TokenDelta, spent: Spent) -> list[Action]:
        """Its budget is spent: an answer that has begun ends here, as one that is out of tokens; another is refused."""
        if not (flight.has_started or delta.token_ids):
            return self._stop_with(flight, spent.error())
        last = msgspec.structs.replace(delta, finish_reason=FinishReason.LENGTH)
        return [*self._stop(flight, FinishReason.LENGTH), Deliver(flight.request_id, last)]

    def _start(self, flight: Flight) -> None:
        if flight.worker_id is not None and flight.is_pending:
            self.fleet.first_token(flight.worker_id, flight.num_pending_tokens)
            if self.watch is not None:
                self.watch.settled(flight.request)
        self.in_flight.start(flight)

    # -- placing --

    def _place(self, flight: Flight, now_s: float) -> list[Action]:
        """Give the request to a worker, or let it wait for one."""
        snapshot = self._candidates(flight.request.model, now_s)
        if not snapshot.members:
            return self._wait(flight, now_s)
        try:
            placement = self._choose(flight.request, snapshot)
        except TokenmillError as error:
            return self._stop_with(flight, error)
        worker_id = placement.worker_id
        self.fleet.placed(flight.request.model)
        if self.watch is not None:
            self.watch.placed(flight.request, placement)
        self.in_flight.place(flight, worker_id)
        flight.send_index = self.fleet.given(worker_id, flight.num_pending_tokens, now_s)
        view = self.fleet.get(worker_id)
        assert view is not None
        request = flight.request
        if flight.token_ids:
            request = msgspec.structs.replace(request, output_token_ids=[*flight.token_ids])
        message = Generate(request, self.fleet.session(worker_id), flight.send_index)
        return [Send(worker_id, view.incarnation, message)]

    def _candidates(self, model: str, now_s: float) -> FleetSnapshot:
        """Ready workers; those that are stuck only when all are.

        A worker gets stuck stall_timeout_s after its last progress: until the first of them can be, nobody looks.
        """
        snapshot = self.fleet.ready(model)
        if self.watch is not None:
            snapshot = replace(snapshot, knowledge=self.watch.of_model(model))
        if now_s < self._calm_until_s.get(model, 0.0):
            return snapshot
        well = tuple(view for view in snapshot.members if not is_stalled(view, self._config, now_s))
        if well and len(well) < len(snapshot.members):
            return FleetSnapshot(model, snapshot.num_placed, well, knowledge=snapshot.knowledge)
        if well:
            first_s = min((view.progress_s for view in well if view.num_in_flight), default=now_s)
            self._calm_until_s[model] = first_s + self._config.stall_timeout_s
        return snapshot

    def _choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        """Ask the policy. It may be someone else's code: its failure costs this request, never the dispatcher."""
        name = type(self._policy).__name__
        try:
            placement = self._policy.choose(request, snapshot)
            worker_id = placement.worker_id
        except Exception as error:
            _log.exception("router policy %s failed on request %s", name, request.request_id)
            raise InternalError(f"router policy {name} failed: {type(error).__name__}; see the server's log") from error
        chosen = self.fleet.get(worker_id)
        is_ready = chosen is not None and chosen.state is MemberState.READY and chosen.model == snapshot.model
        if not is_ready or (snapshot.order is None and chosen not in snapshot.members):
            possible = ", ".join(view.worker_id for view in snapshot.members)
            raise InternalError(f"router policy {name} chose worker {worker_id!r}; possible were {possible}")
        return placement

    def _wait(self, flight: Flight, now_s: float) -> list[Action]:
        if not self.fleet.can_return(flight.request.model):
            return self._stop_with(flight, _lost(flight, "no worker of its model is left"))
        if flight.wait_until_s is None:
            self.in_flight.wait(flight, now_s + self._config.worker_wait_timeout_s)
        return []

    # -- loss --

    def _give_up(self, worker_id: str, reason: str, now_s: float) -> list[Action]:
        self.fleet.give_up(worker_id, reason, now_s, is_expected_back=True)
        return self._evacuate(worker_id, reason, now_s)

    def _evacuate(self, worker_id: str, reason: str, now_s: float) -> list[Action]:
        """A life is over: its requests start over elsewhere, behind what went out of their answers."""
        actions: list[Action] = []
        if self.watch is not None:
            self.watch.gone(worker_id)
        for flight in self.in_flight.of_worker(worker_id):
            self._unplace(flight)
            actions += self._retry(flight, f"worker {worker_id}: {reason}", now_s)
        return actions

    def _elsewhere(self, flight: Flight, reason: str, now_s: float) -> list[Action]:
        """A living worker refused the request because it is leaving."""
        worker_id = flight.worker_id
        assert worker_id is not None
        self.fleet.ended(worker_id, flight.num_pending_tokens)
        self.fleet.drain(worker_id, now_s)
        self._unplace(flight)
        return self._retry(flight, f"worker {worker_id}: {reason}", now_s)

    def _unplace(self, flight: Flight) -> None:
        """Its worker has it no longer."""
        if self.watch is not None:
            self.watch.settled(flight.request)
        self.in_flight.unplace(flight)

    def _retry(self, flight: Flight, reason: str, now_s: float) -> list[Action]:
        if flight.has_started and not self._config.migration:
            return self._stop_with(flight, _lost(flight, f"{reason}, after some of the answer was sent"))
        if flight.attempts >= self._config.max_attempts:
            return self._stop_with(flight, _lost(flight, f"{reason}; {flight.attempts} workers were tried"))
        self.in_flight.reopen(flight)
        if flight.has_started:
            self.num_migrations += 1
        return self._place(flight, now_s)

    # -- time --

    def _forgive(self, now_s: float) -> None:
        last, self._last_tick_s = self._last_tick_s, now_s
        if last is not None and now_s - last > _OVERSLEPT_S:
            _log.warning("the frontend did not run for %.1f s", now_s - last)
            self.fleet.forgive_silence(now_s - last)

    def _log_stalls(self, now_s: float) -> None:
        """Say it in the log when a worker gets stuck, once; /health says it as long as it lasts."""
        stalls = {
            view.worker_id: stall_reason(view, now_s)
            for view in self.fleet.members()
            if is_stalled(view, self._config, now_s)
        }
        for worker_id in stalls.keys() - self._stalled:
            _log.error("%s", stalls[worker_id])
        self._stalled = set(stalls)

    def _check_workers(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for view in self.fleet.members():
            reason = self._silence(view.state, now_s - view.last_seen_s, now_s - view.since_s)
            if reason:
                actions.append(Replace(Unresponsive(view.worker_id, view.incarnation, reason)))
            unseen_since_s = self.fleet.unseen_since_s(view.worker_id)
            is_unseen = view.num_unseen > 0 and unseen_since_s is not None
            if reason is None and is_unseen and now_s - (unseen_since_s or now_s) > self._config.heartbeat_timeout_s:
                reason = "a request that it was sent never came"
            if reason:
                actions += self._give_up(view.worker_id, reason, now_s)
        return actions

    def _silence(self, state: MemberState, silent_s: float, in_state_s: float) -> str | None:
        if state in (MemberState.READY, MemberState.DRAINING) and silent_s > self._config.heartbeat_timeout_s:
            return f"silent for {silent_s:.1f} s"
        if state is MemberState.STARTING and in_state_s > self._config.start_timeout_s:
            return f"not ready {in_state_s:.0f} s after its start"
        return None

    def _check_flights(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for flight in self.in_flight.overdue(now_s):
            limit = f"{self._config.request_timeout_s:g} s (request_timeout_s)"
            error = DeadlineError(f"request {flight.request_id} did not end within {limit}: ask for fewer tokens")
            actions += self._stop_with(flight, error)
        for flight in self.in_flight.waiting():
            if flight.wait_until_s is not None and flight.wait_until_s <= now_s:
                limit = f"{self._config.worker_wait_timeout_s:g} s"
                actions += self._stop_with(flight, _lost(flight, f"no worker came back within {limit}"))
        return actions

    # -- ends --

    def _stop_with(self, flight: Flight, error: TokenmillError) -> list[Action]:
        return [*self._stop(flight, FinishReason.ERROR), Fail(flight.request_id, error)]

    def _stop(self, flight: Flight, reason: FinishReason) -> list[Action]:
        """End a request from our side; whoever runs it is told."""
        worker_id = flight.worker_id
        self._end(flight, reason)
        view = self.fleet.get(worker_id) if worker_id is not None else None
        return [] if view is None else [Send(view.worker_id, view.incarnation, Abort(flight.request_id))]

    def _end(self, flight: Flight, reason: FinishReason) -> None:
        if flight.worker_id is not None:
            self.fleet.ended(flight.worker_id, flight.num_pending_tokens)
        if self.watch is not None:
            self.watch.settled(flight.request)
        self.in_flight.remove(flight)
        is_complete = reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._ledger.finish(flight.request_id, is_complete=is_complete)


def _lost(flight: Flight, reason: str) -> WorkerLostError:
    return WorkerLostError(f"request {flight.request_id} was lost ({reason}): send it again")
