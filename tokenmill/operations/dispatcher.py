"""The frontend's end of the wire: carries out on sockets and streams what dispatch.py decides.

One asyncio loop owns it. Not responsible for: decisions (dispatch.py), HTTP and text (api/).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import Self

import msgspec
import zmq
import zmq.asyncio

from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import InternalError, OverloadedError, ResourceError, UnavailableError
from tokenmill.core.model_card import ModelCard
from tokenmill.core.request import Request, TokenDelta
from tokenmill.core.wire import ToFrontend, WorkerExited, decode_to_frontend, encode
from tokenmill.cost.budgets import BudgetConfig
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.operations.actions import Action, Deliver, Fail, Replace, Send
from tokenmill.operations.addresses import SUPERVISOR, worker_identity
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.dispatch import DispatchCore
from tokenmill.operations.health import Health
from tokenmill.operations.members import MemberView
from tokenmill.operations.router.registry import load_policy
from tokenmill.operations.streams import TokenStream

_log = logging.getLogger(__name__)

_TICK_S = 0.1
#: Frames a dead worker sent last may be read after the supervisor's notice of its end: the notice waits for them.
_EXIT_SETTLE_S = 0.02
#: Messages taken in one go before the loop's other tasks have their turn.
_MAX_BURST = 64


class Dispatcher:
    """
    endpoint   where workers and supervisor connect to, e.g. "ipc:///run/dir/frontend.sock"
    rate       price and watts of one worker
    ledger     given when it has objectives, limits or a past of its own
    budgets    what sessions and tenants may spend; None: no limits
    expected   worker_id -> model of the deployment's workers, so that a model is known before it is ready
    """

    def __init__(
        self,
        endpoint: str,
        config: OperationsConfig,
        *,
        rate: DeviceRate,
        ledger: Ledger | None = None,
        budgets: BudgetConfig | None = None,
        expected: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.ledger = ledger or Ledger()
        self._endpoint = endpoint
        self._config = config
        self._clock = clock or SystemClock()
        policy = load_policy(config.router, config.router_seed)
        self._core = DispatchCore(config, policy, self.ledger, rate, budgets)
        for worker_id, model in (expected or {}).items():
            self._core.fleet.expect(worker_id, model, self._clock.now())
        self._streams: dict[str, TokenStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None

    # -- life --

    async def start(self) -> None:
        """Bind the socket and begin to listen; ResourceError when that is not possible."""
        assert self._socket is None, "started twice"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),  # sending to a peer that is gone is an error, not a silent loss
            (zmq.ROUTER_HANDOVER, 1),  # a peer that reconnects takes its identity over
            (zmq.SNDHWM, 0),  # bounded by admission
            (zmq.RCVHWM, 0),  # bounded by what the requests in flight may produce
            (zmq.LINGER, 0),
        ):
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(self._endpoint)
        except zmq.ZMQError as error:
            await self.close()
            raise ResourceError(f"cannot listen for workers on {self._endpoint}: {error.strerror}") from error
        for name, work in (("receive", self._receive()), ("tick", self._tick())):
            task = asyncio.create_task(work, name=f"dispatcher-{name}")
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def close(self) -> None:
        """Stop listening; requests still in flight end with UnavailableError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._cut_off()
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Take nothing new, let what runs finish; True when it did within the time (drain_timeout_s by default)."""
        self._core.is_draining = True
        try:
            async with asyncio.timeout(self._config.drain_timeout_s if timeout_s is None else timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._cut_off()
            return False
        return True

    def _cut_off(self) -> None:
        for flight in list(self._core.in_flight):
            error = UnavailableError(f"the server stopped before request {flight.request_id} had ended: send it again")
            self._perform(self._core.refuse(flight.request_id, error))

    # -- consumers --

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        """The request's tokens as they come; the last delta has a finish_reason.

        Typed errors are raised: those of admission by the first step of the iteration, later ones after the
        tokens before them. Leaving the iterator (`aclose`, cancellation, an exception) aborts the request at
        once; use `contextlib.aclosing` where an iteration may be left early.
        """
        if self._failure is not None:
            raise InternalError(self._failure)
        if self._socket is None:
            raise UnavailableError("the dispatcher is not running: start it first")
        actions = self._core.submit(request, self._clock.now())
        stream = self._streams[request.request_id] = TokenStream(self._config.max_unread_tokens)
        try:
            self._perform(actions)
            is_last = False
            while not is_last:
                delta = await stream.get()
                is_last = delta.finish_reason is not None
                yield delta
        finally:
            del self._streams[request.request_id]
            self._perform(self._core.cancel(request.request_id))

    def abort(self, request_id: str) -> None:
        """End a request from outside its iteration, which then ends with finish_reason abort."""
        self._perform(self._core.abort(request_id))

    # -- views --

    def cards(self) -> dict[str, ModelCard]:
        """Models by name, also those whose workers are restarting."""
        return self._core.fleet.cards()

    def models(self) -> list[str]:
        """Names of all models of the deployment, also of those that are still starting."""
        return self._core.fleet.models()

    def health(self) -> Health:
        return self._core.health(self._clock.now(), self._failure)

    def snapshot(self) -> tuple[MemberView, ...]:
        """Every worker with its state, load and latest statistics."""
        return self._core.fleet.members()

    @property
    def num_in_flight(self) -> int:
        return len(self._core.in_flight)

    @property
    def num_waiting(self) -> int:
        """Requests that lost their worker and wait for another."""
        return len(self._core.in_flight.waiting())

    # -- the wire --

    async def _receive(self) -> None:
        assert self._socket is not None
        while True:
            for _ in range(_MAX_BURST):
                self._take(await self._socket.recv_multipart())
            await asyncio.sleep(0)

    def _take(self, parts: list[bytes]) -> None:
        try:
            message = decode_to_frontend(parts[-1])
        except msgspec.DecodeError as error:
            _log.error("dropped a message of %s that is not of this protocol: %s", parts[0][:40], error)
            return
        if isinstance(message, WorkerExited):
            asyncio.get_running_loop().call_later(_EXIT_SETTLE_S, self._handle, message)
        else:
            self._handle(message)

    def _handle(self, message: ToFrontend) -> None:
        self._perform(self._core.handle(message, self._clock.now()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._perform(self._core.tick(self._clock.now()))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A task of ours never ends by itself: if it does, say so in /health and let nobody wait for it."""
        if task.cancelled():
            return
        self._failure = f"the dispatcher's {task.get_name()} task failed: {task.exception()!r}"
        _log.critical("%s", self._failure, exc_info=task.exception())
        for flight in list(self._core.in_flight):
            self._perform(self._core.refuse(flight.request_id, InternalError(self._failure)))

    # -- actions --

    def _perform(self, actions: Iterable[Action]) -> None:
        queue = deque(actions)
        while queue:
            queue.extend(self._do(queue.popleft()))
        if len(self._core.in_flight):
            self._idle.clear()
        else:
            self._idle.set()

    def _do(self, action: Action) -> list[Action]:
        """Carry out one action; what follows from it comes back."""
        match action:
            case Send():
                if not self._send(worker_identity(action.worker_id, action.incarnation), encode(action.message)):
                    return self._core.undeliverable(action.worker_id, action.incarnation, self._clock.now())
            case Deliver():
                return self._deliver(action.request_id, action.delta)
            case Fail():
                if action.request_id in self._streams:
                    self._streams[action.request_id].fail(action.error)
            case Replace():
                _log.error("worker %s: %s; it is replaced", action.message.worker_id, action.message.reason)
                self._send(SUPERVISOR, encode(action.message))
        return []

    def _deliver(self, request_id: str, delta: TokenDelta) -> list[Action]:
        stream = self._streams.get(request_id)
        if stream is None:
            return []
        stream.put(delta)
        if delta.finish_reason is not None or not stream.is_over_limit:
            return []
        error = OverloadedError(
            f"request {request_id}: more than {self._config.max_unread_tokens} tokens wait to be read: read faster"
        )
        return self._core.refuse(request_id, error)

    def _send(self, identity: bytes, payload: bytes) -> bool:
        """Hand a message to the socket, never waiting; False when that peer is not there."""
        if self._socket is None:
            return True
        sent = self._socket.send_multipart([identity, payload], flags=zmq.NOBLOCK)
        assert isinstance(sent, asyncio.Future) and sent.done(), "a non-blocking send is decided at once"
        error = sent.exception()
        if error is None:
            return True
        if isinstance(error, zmq.ZMQError) and error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            return False
        raise error
