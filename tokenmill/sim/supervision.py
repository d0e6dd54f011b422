"""The supervisor on virtual time: the production decisions, carried out on simulated processes.

Not responsible for: what a worker does (worker.py). The frontend is assumed to live; its loss is a process test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tokenmill.core.wire import Unresponsive, WorkerExited
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.supervisor import Finish, Kill, Launch, Order, Report, Supervisor, Terminate
from tokenmill.sim.events import EventQueue
from tokenmill.sim.worker import SimWorker

_FRONTEND = "frontend"
#: As in operations/dispatcher.py: frames that a dead worker sent last are read before the notice of its end.
_EXIT_SETTLE_S = 0.02
_KILLED = -9

#: (worker_id, incarnation, on_exit) -> a process that begins to load.
StartWorker = Callable[[str, int, Callable[[int], None]], SimWorker]


class SimSupervisor:
    """
    workers   the processes that live, by name
    report    tells the frontend of an end
    """

    def __init__(
        self,
        queue: EventQueue,
        worker_ids: list[str],
        config: OperationsConfig,
        *,
        start_worker: StartWorker,
        report: Callable[[WorkerExited], None],
    ) -> None:
        self._queue = queue
        self._supervisor = Supervisor(_FRONTEND, worker_ids, config)
        self._start_worker = start_worker
        self._report = report
        self._workers: dict[str, SimWorker] = {}
        self._next_tick: list | None = None
        self.num_restarts = 0
        self.finish: Finish | None = None

    @property
    def workers(self) -> Mapping[str, SimWorker]:
        return self._workers

    def start(self) -> None:
        self._carry_out(self._supervisor.start(self._queue.now()))

    def kill(self, worker_id: str) -> None:
        """Its process ends now, by a signal."""
        worker = self._workers.pop(worker_id, None)
        if worker is not None:
            worker.kill()
            self._exited(worker_id, _KILLED)

    def unresponsive(self, message: Unresponsive) -> None:
        self._carry_out(self._supervisor.unresponsive(message.worker_id, message.incarnation))

    def exited(self, worker_id: str, exit_code: int) -> None:
        """Its process ended by itself."""
        if self._workers.pop(worker_id, None) is not None:
            self._exited(worker_id, exit_code)

    def _exited(self, worker_id: str, exit_code: int) -> None:
        self._carry_out(self._supervisor.exited(worker_id, exit_code, self._queue.now()))

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Launch():
                    if order.name != _FRONTEND:
                        self._launch(order)
                case Kill():
                    self.kill(order.name)
                case Terminate():
                    if order.name in self._workers:
                        self._workers[order.name].drain()
                case Report():
                    notice = order.notice
                    self._queue.after(_EXIT_SETTLE_S, partial(self._report, notice))
                case Finish():
                    self.finish = order
        self._plan_tick()

    def _launch(self, order: Launch) -> None:
        name = order.name
        self.num_restarts += order.incarnation > 0
        worker = self._start_worker(name, order.incarnation, lambda code: self.exited(name, code))
        self._workers[name] = worker

    def _plan_tick(self) -> None:
        due_s = self._supervisor.next_tick_s()
        self._queue.cancel(self._next_tick)
        self._next_tick = None
        if due_s is not None:
            self._next_tick = self._queue.at(max(due_s, self._queue.now()), self._tick)

    def _tick(self) -> None:
        self._carry_out(self._supervisor.tick(self._queue.now()))
