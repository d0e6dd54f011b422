"""The frontend on virtual time: the production dispatcher core, its wire and its consumers.

Not responsible for: which requests come (load.py), processes (supervision.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tokenmill.core.errors import TokenmillError
from tokenmill.core.request import Request, TokenDelta
from tokenmill.core.wire import ToFrontend, ToWorker, Unresponsive
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.actions import Action, Deliver, Fail, Replace, Send
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatch import DispatchCore
from tokenmill.operations.router.registry import load_policy
from tokenmill.sim.decisions import DecisionLog
from tokenmill.sim.events import EventQueue

#: As in operations/dispatcher.py.
TICK_S = 0.1


class Consumer(Protocol):
    """Whoever asked; hears of each request until its one end."""

    def delivered(self, request_id: str, delta: TokenDelta) -> None: ...

    def failed(self, request_id: str, error: TokenmillError) -> None: ...


class SimFrontend:
    """
    send       puts a message on the wire to a life of a worker; False: that life is not connected
    replace    tells the supervisor of a worker that does not answer
    """

    def __init__(
        self,
        queue: EventQueue,
        config: OperationsConfig,
        rate: DeviceRate,
        *,
        ledger: Ledger,
        decisions: DecisionLog,
        send: Callable[[str, int, ToWorker], bool],
        replace: Callable[[Unresponsive], None],
    ) -> None:
        self.ledger = ledger
        self.core = DispatchCore(config, load_policy(config.router, config.router_seed), ledger, rate)
        self.consumer: Consumer | None = None
        self._queue = queue
        self._decisions = decisions
        self._send = send
        self._replace = replace
        self._tick_event = queue.after(TICK_S, self._tick)

    def submit(self, request: Request) -> None:
        """TokenmillError when it is not admitted."""
        try:
            actions = self.core.submit(request, self._queue.now())
        except TokenmillError as error:
            self._decisions.note(self._queue.now(), "refuse", request.request_id, error.code)
            raise
        self._perform(actions)

    def cancel(self, request_id: str) -> None:
        self._perform(self.core.cancel(request_id))

    def handle(self, message: ToFrontend) -> None:
        self._perform(self.core.handle(message, self._queue.now()))

    def stop(self) -> None:
        self._queue.cancel(self._tick_event)

    def _tick(self) -> None:
        self._perform(self.core.tick(self._queue.now()))
        self._tick_event = self._queue.after(TICK_S, self._tick)

    def _perform(self, actions: Iterable[Action]) -> None:
        pending = deque(actions)
        while pending:
            pending.extend(self._do(pending.popleft()))

    def _do(self, action: Action) -> list[Action]:
        assert self.consumer is not None, "nobody listens"
        match action:
            case Send():
                self._decisions.sent(self._queue.now(), action)
                if not self._send(action.worker_id, action.incarnation, action.message):
                    return self.core.undeliverable(action.worker_id, action.incarnation, self._queue.now())
            case Deliver():
                if action.delta.finish_reason is not None:
                    self._decisions.note(self._queue.now(), "end", action.request_id, action.delta.finish_reason.value)
                self.consumer.delivered(action.request_id, action.delta)
            case Fail():
                self._decisions.note(self._queue.now(), "fail", action.request_id, action.error.code)
                self.consumer.failed(action.request_id, action.error)
            case Replace():
                self._decisions.note(self._queue.now(), "replace", action.message.worker_id, "")
                self._replace(action.message)
        return []
