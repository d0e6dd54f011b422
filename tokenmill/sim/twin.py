"""The twin: a fleet on virtual time under the production dispatcher, supervisor, worker loop, scheduler and ledger.

Same deployment, load, faults and seed: same decisions, to the last one (decisions.py). Not responsible for: reports
(report.py), what a step costs (a step-time model), where the load comes from (workloads).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tokenmill.core.model_card import ModelCard
from tokenmill.core.wire import Generate, StepFrame, ToFrontend, ToWorker
from tokenmill.cost.ledger import Ledger
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.steptime.shape import StepTime
from tokenmill.operations.config import OperationsConfig
from tokenmill.sim.decisions import DecisionLog
from tokenmill.sim.events import EventQueue
from tokenmill.sim.faults import Fault
from tokenmill.sim.frontend import SimFrontend
from tokenmill.sim.load import SimLoad
from tokenmill.sim.mishaps import Mishaps
from tokenmill.sim.network import Network, NetworkConfig
from tokenmill.sim.supervision import SimSupervisor
from tokenmill.sim.worker import MakeEngine, SimWorker
from tokenmill.workloads.conductor import Conductor

_FRONTEND = "frontend"


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Workers that are all alike.

    make_engine  builds one life's engine
    load_s       from start to ready
    """

    card: ModelCard
    num_workers: int
    make_engine: MakeEngine
    step_time: StepTime
    load_s: float = 1.0


@dataclass(frozen=True, slots=True)
class TwinConfig:
    """
    rate        price and watts of one worker
    keeps_all   tokens are told and noted as they come; without, per request (millions of them)
    keeps_decisions  hold the decisions, to be saved
    door_s      the frontend's work on a request before it is dispatched; it takes one after the other
    """

    kinds: tuple[WorkerKind, ...]
    operations: OperationsConfig
    rate: DeviceRate
    network: NetworkConfig = field(default_factory=NetworkConfig)
    seed: int = 0
    keeps_all: bool = True
    keeps_decisions: bool = False
    door_s: float = 0.0


class Twin:
    """One run. `conductor` says what is asked and when; seconds count from when all workers are ready."""

    def __init__(
        self,
        config: TwinConfig,
        conductor: Conductor,
        *,
        faults: Sequence[Fault] = (),
        ledger: Ledger | None = None,
        start_s: float | None = None,
    ) -> None:
        self.config = config
        self.queue = EventQueue()
        self.network = Network(self.queue, config.network, Random(f"{config.seed}/network"))
        self.decisions = DecisionLog(keep=config.keeps_decisions)
        self._kind_of: dict[str, WorkerKind] = {}
        for kind in config.kinds:
            for _ in range(kind.num_workers):
                self._kind_of[f"worker-{len(self._kind_of):04d}"] = kind
        self.frontend = SimFrontend(
            self.queue,
            config.operations,
            config.rate,
            ledger=ledger or Ledger(max_open=10**9, max_ended=4096),
            decisions=self.decisions,
            send=self._to_worker,
            replace=lambda message: self.supervisor.unresponsive(message),
        )
        self.supervisor = SimSupervisor(
            self.queue,
            list(self._kind_of),
            config.operations,
            start_worker=self._start_worker,
            report=self.frontend.handle,
        )
        for worker_id, kind in self._kind_of.items():
            self.frontend.core.fleet.expect(worker_id, kind.card.name, 0.0)
        self.mishaps = Mishaps(self.queue, self.network, self.supervisor, self.frontend, config.rate)
        start_s = max(kind.load_s for kind in config.kinds) + 0.01 if start_s is None else start_s
        self.load = SimLoad(
            self.queue,
            self.frontend,
            conductor,
            [kind.card for kind in config.kinds],
            keeps_all=config.keeps_all,
            start_s=start_s,
            door_s=config.door_s,
        )
        self.start_s = start_s
        self.mishaps.plan(faults, start_s)

    @property
    def worker_ids(self) -> list[str]:
        return list(self._kind_of)

    def run(self, *, settle_s: float = 0.0, watch: Callable[[], None] | None = None) -> None:
        """Until every request has ended, and `settle_s` longer. `watch` is called after every event."""
        self.supervisor.start()
        if not self.config.keeps_all:
            _spare_the_collector()
        while not self.load.is_done:
            happened = self.queue.run_next()
            assert happened, "nothing will ever happen again, and requests are open"
            if watch is not None:
                watch()
        self.end_s = self.queue.now()
        until_s = max(self.queue.now(), self.mishaps.end_s) + settle_s
        while settle_s and self.queue.now() < until_s and self.queue.run_next():
            if watch is not None:
                watch()

    # -- the wire --

    def _start_worker(self, worker_id: str, incarnation: int, on_exit: Callable[[int], None]) -> SimWorker:
        kind = self._kind_of[worker_id]

        def send(messages: Sequence[ToFrontend]) -> None:
            for message in messages:
                self.network.send(worker_id, _FRONTEND, _size(message), partial(self.frontend.handle, message))

        return SimWorker(
            self.queue,
            kind.make_engine,
            kind.step_time,
            worker_id=worker_id,
            incarnation=incarnation,
            config=self.config.operations,
            load_s=kind.load_s,
            skew_s=self.mishaps.skew_s(worker_id),
            fails_to_load=lambda: self.mishaps.has_bad_disk(worker_id),
            send=send,
            on_exit=on_exit,
        )

    def _to_worker(self, worker_id: str, incarnation: int, message: ToWorker) -> bool:
        """False when that life is not there: the wire of production says so, too."""
        worker = self.supervisor.workers.get(worker_id)
        if worker is None or worker.incarnation != incarnation:
            return False
        self.network.send(_FRONTEND, worker_id, _size(message), lambda: worker.deliver(message))
        return True


def _spare_the_collector() -> None:
    """Millions of objects live long and hardly any are cycles: looking for those again and again takes its time."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)


def _size(message: ToWorker | ToFrontend) -> int:
    """Bytes on the wire, about."""
    if isinstance(message, Generate):
        return 300 + 4 * len(message.request.prompt_token_ids) + 18 * len(message.request.block_hashes)
    if isinstance(message, StepFrame):
        return 160 + sum(60 + 4 * len(delta.token_ids) for delta in message.deltas)
    return 100
