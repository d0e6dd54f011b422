"""Property: whatever workers, supervisor and consumers do, every request ends once and no token is lost or doubled.

Workers count (the n-th token of a request is n), their frames travel on a wire that may be late, and they die, fall
silent, drain and return at any moment.
"""

from __future__ import annotations

from collections import deque

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.operations.ops_fakes import make_core, make_exit, make_frame, make_hello, make_request
from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import FinishReason, TokenDelta
from tokenmill.core.wire import Abort, Generate, Goodbye, Introduce, ToFrontend, ToWorker
from tokenmill.operations.actions import Action, Deliver, Fail, Replace, Send
from tokenmill.operations.config import OperationsConfig

WORKERS = ("w0", "w1", "w2")
LENGTH = 3
CONFIG = OperationsConfig(
    heartbeat_timeout_s=5.0,
    worker_wait_timeout_s=8.0,
    request_timeout_s=60.0,
    max_attempts=3,
    max_queued_requests=4,
)


class Life:
    """One life of a worker, with both directions of its wire."""

    def __init__(self, worker_id: str, incarnation: int) -> None:
        self.worker_id, self.incarnation = worker_id, incarnation
        self.inbox: deque[ToWorker] = deque()
        self.outbox: deque[ToFrontend] = deque()
        self.progress: dict[str, int] = {}
        self.num_received = 0
        self.is_draining = False
        self.outbox.append(make_hello(worker_id, incarnation))

    def read(self) -> list[TokenDelta]:
        refused = []
        while self.inbox:
            message = self.inbox.popleft()
            match message:
                case Generate():
                    self.num_received += 1
                    request_id = message.request.request_id
                    assert request_id not in self.progress, f"{request_id} was sent twice to one life"
                    if self.is_draining:
                        refused.append(
                            TokenDelta(
                                request_id=request_id, finish_reason=FinishReason.ERROR, error=("unavailable", "")
                            )
                        )
                    else:
                        self.progress[request_id] = len(message.request.output_token_ids)
                case Abort():
                    self.progress.pop(message.request_id, None)
                case Introduce():
                    self.progress.clear()
                    self.num_received = 0
                    self.outbox.append(make_hello(self.worker_id, self.incarnation))
        return refused

    def step(self, now_s: float, chosen: int) -> None:
        """Read, then one token for some of the requests, a prompt chunk for the others."""
        deltas = self.read()
        for index, request_id in enumerate(list(self.progress)):
            if not chosen >> index & 1:
                deltas.append(TokenDelta(request_id=request_id))
                continue
            self.progress[request_id] += 1
            is_last = self.progress[request_id] == LENGTH
            deltas.append(
                TokenDelta(
                    request_id=request_id,
                    token_ids=(self.progress[request_id],),
                    finish_reason=FinishReason.LENGTH if is_last else None,
                )
            )
            if is_last:
                del self.progress[request_id]
        frame = make_frame(
            self.worker_id,
            self.incarnation,
            *deltas,
            until_s=now_s,
            num_received=self.num_received,
            num_running=len(self.progress),
        )
        self.outbox.append(frame)


class Dispatching(RuleBasedStateMachine):
    requests: Bundle[str] = Bundle("requests")
    workers = st.sampled_from(WORKERS)

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.core = make_core(CONFIG, workers=())
        for worker_id in WORKERS:
            self.core.fleet.expect(worker_id, "m", 0.0)
        self.lives: dict[str, Life | None] = {worker_id: Life(worker_id, 0) for worker_id in WORKERS}
        self.next_life = dict.fromkeys(WORKERS, 1)
        self.dead_wires: list[Life] = []
        self.shown: dict[str, list[int]] = {}
        self.ends: dict[str, int] = {}

    # -- the world --

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    life = self.lives.get(action.worker_id)
                    if life is not None and life.incarnation == action.incarnation:
                        life.inbox.append(action.message)
                    else:
                        self.act(self.core.undeliverable(action.worker_id, action.incarnation, self.now_s))
                case Deliver():
                    assert self.ends[action.request_id] == 0, "tokens after the end"
                    self.shown[action.request_id] += action.delta.token_ids
                    self.ends[action.request_id] += action.delta.finish_reason is not None
                case Fail():
                    assert isinstance(action.error, TokenmillError)
                    self.ends[action.request_id] += 1
                case Replace():
                    life = self.lives[action.message.worker_id]
                    if life is not None and life.incarnation == action.message.incarnation:
                        self.die(action.message.worker_id, True)

    def die(self, worker_id: str, will_restart: bool, *, is_noticed: bool = True) -> None:
        life = self.lives[worker_id]
        assert life is not None
        self.dead_wires.append(life)
        self.lives[worker_id] = None
        if is_noticed:
            notice = make_exit(worker_id, life.incarnation, will_restart=will_restart, at_s=self.now_s)
            self.act(self.core.handle(notice, self.now_s))

    def deliver_from(self, life: Life) -> None:
        if life.outbox:
            self.act(self.core.handle(life.outbox.popleft(), self.now_s))

    # -- rules --

    @initialize()
    def all_say_hello(self) -> None:
        for life in self.lives.values():
            self.deliver_from(life)

    @rule(targets=[requests], sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def submit(self, sizes: list[int]) -> MultipleResults[str]:
        ids = [f"r{len(self.ends) + index}" for index in range(len(sizes))]
        for request_id, num_tokens in zip(ids, sizes, strict=True):
            self.submit_one(request_id, num_tokens)
        return multiple(*ids)

    @rule(request_id=requests)
    def submit_again(self, request_id: str) -> None:
        """A client that retries under its old id."""
        if self.core.in_flight.get(request_id) is None:
            self.submit_one(request_id, 4)

    def submit_one(self, request_id: str, num_tokens: int) -> None:
        self.shown[request_id], self.ends[request_id] = [], 0
        try:
            self.act(self.core.submit(make_request(request_id, num_tokens=num_tokens), self.now_s))
        except TokenmillError:
            self.ends[request_id] = 1

    @rule(request_id=requests, stays=st.booleans())
    def leave(self, request_id: str, stays: bool) -> None:
        if stays:
            self.act(self.core.abort(request_id))
            return
        was_open = self.core.in_flight.get(request_id) is not None
        self.act(self.core.cancel(request_id))
        self.ends[request_id] += was_open

    @rule(worker_id=workers, chosen=st.integers(0, 255), is_late=st.booleans())
    def work(self, worker_id: str, chosen: int, is_late: bool) -> None:
        """A step; its frame may stay under way for a while."""
        life = self.lives[worker_id]
        if life is not None:
            life.step(self.now_s, chosen)
            while life.outbox and not is_late:
                self.deliver_from(life)

    @rule(chosen=st.integers(0, 255))
    def all_work(self, chosen: int) -> None:
        for worker_id in WORKERS:
            self.work(worker_id, chosen, is_late=False)

    @precondition(lambda self: self.dead_wires)
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        self.deliver_from(data.draw(st.sampled_from(self.dead_wires)))

    @rule(worker_id=workers, will_restart=st.booleans(), is_noticed=st.booleans())
    def kill(self, worker_id: str, will_restart: bool, is_noticed: bool) -> None:
        if self.lives[worker_id] is not None:
            self.die(worker_id, will_restart, is_noticed=is_noticed)

    @rule(worker_id=workers, is_heard=st.booleans())
    def restart(self, worker_id: str, is_heard: bool) -> None:
        if self.lives[worker_id] is None:
            life = self.lives[worker_id] = Life(worker_id, self.next_life[worker_id])
            self.next_life[worker_id] += 1
            if is_heard:
                self.deliver_from(life)

    @precondition(lambda self: sum(life is not None and not life.is_draining for life in self.lives.values()) > 1)
    @rule(worker_id=workers)
    def drain(self, worker_id: str) -> None:
        """It refuses what comes from now on."""
        if (life := self.lives[worker_id]) is not None:
            life.is_draining = True

    @precondition(lambda self: any(life is not None and life.is_draining for life in self.lives.values()))
    @rule()
    def say_goodbye(self) -> None:
        for life in filter(None, self.lives.values()):
            if life.is_draining and not life.progress and not life.inbox:
                life.outbox.append(Goodbye(worker_id=life.worker_id, incarnation=life.incarnation))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.9]))
    def wait(self, seconds: float) -> None:
        """More than 2 s between ticks would look like a frontend that slept."""
        self.now_s += seconds
        self.act(self.core.tick(self.now_s))

    # -- what must hold --

    @invariant()
    def books_agree(self) -> None:
        self.core.check_integrity()

    @invariant()
    def nothing_is_doubled_or_lost(self) -> None:
        for request_id, shown in self.shown.items():
            assert shown == list(range(1, len(shown) + 1)), f"{request_id} was shown {shown}"

    @invariant()
    def ends_are_single(self) -> None:
        for request_id, ends in self.ends.items():
            is_open = self.core.in_flight.get(request_id) is not None
            assert ends == (0 if is_open else 1), f"{request_id}: {ends} ends, open: {is_open}"

    def teardown(self) -> None:
        """Left to themselves, all requests end, and well before their deadline when workers work."""
        for _ in range(400):
            if not len(self.core.in_flight):
                break
            for worker_id, life in self.lives.items():
                if life is None or life.is_draining:
                    if life is not None:
                        self.die(worker_id, True)
                    self.restart(worker_id, is_heard=True)
                else:
                    life.step(self.now_s, 255)
                    while life.outbox:
                        self.deliver_from(life)
            self.wait(0.1)
        assert not len(self.core.in_flight)
        self.books_agree()
        self.ends_are_single()


TestDispatching = Dispatching.TestCase
TestDispatching.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
