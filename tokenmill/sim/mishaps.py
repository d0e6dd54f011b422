"""Makes faults happen to a simulated fleet, and ends them. Not responsible for: which and when (faults.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tokenmill.cost.rates import DeviceRate
from tokenmill.sim.events import EventQueue
from tokenmill.sim.faults import Fault, FaultKind
from tokenmill.sim.frontend import SimFrontend
from tokenmill.sim.network import Network, Trouble
from tokenmill.sim.supervision import SimSupervisor


class Mishaps:
    """end_s: when the last one is over."""

    def __init__(
        self,
        queue: EventQueue,
        network: Network,
        supervisor: SimSupervisor,
        frontend: SimFrontend,
        rate: DeviceRate,
    ) -> None:
        self.end_s = 0.0
        self.num_happened = 0
        self.log: list[tuple[float, Fault]] = []
        self._queue = queue
        self._network = network
        self._supervisor = supervisor
        self._frontend = frontend
        self._rate = rate
        self._active: dict[str, list[Fault]] = {}
        self._skews: dict[str, float] = {}

    def plan(self, faults: Sequence[Fault], start_s: float) -> None:
        """`start_s`: where the faults' own seconds begin."""
        for fault in faults:
            self._queue.at(start_s + fault.at_s, partial(self._begin, fault))
            self.end_s = max(self.end_s, start_s + fault.end_s)

    def skew_s(self, worker_id: str) -> float:
        return self._skews.get(worker_id, 0.0)

    def has_bad_disk(self, worker_id: str) -> bool:
        return any(fault.kind is FaultKind.DISK for fault in self._active.get(worker_id, ()))

    def _begin(self, fault: Fault) -> None:
        self.num_happened += 1
        self.log.append((self._queue.now(), fault))
        if fault.kind is FaultKind.PRICE:
            self._rate = replace(self._rate, usd_per_hour=self._rate.usd_per_hour * fault.amount)
            self._frontend.core.reprice(self._rate)
            return
        assert fault.worker is not None
        if fault.seconds:
            self._active.setdefault(fault.worker, []).append(fault)
            self._queue.after(fault.seconds, lambda: self._end(fault))
        self._happen(fault, fault.worker)

    def _happen(self, fault: Fault, worker_id: str) -> None:
        worker = self._supervisor.workers.get(worker_id)
        match fault.kind:
            case FaultKind.CRASH:
                self._supervisor.kill(worker_id)
            case FaultKind.SKEW:  # clocks of hosts differ; one that runs is monotonic
                self._skews[worker_id] = fault.amount
                if worker is not None:
                    worker.clock.skew_s += max(0.0, fault.amount)
            case FaultKind.DISK:
                if worker is not None:
                    worker.fail()
            case FaultKind.HANG:
                if worker is not None:
                    worker.freeze(fault.seconds)
            case _:
                self._apply(worker_id)

    def _end(self, fault: Fault) -> None:
        assert fault.worker is not None
        self._active[fault.worker].remove(fault)
        self._apply(fault.worker)

    def _apply(self, worker_id: str) -> None:
        """Slowness and trouble of its network are those of all faults that last."""
        active = self._active.get(worker_id, [])

        def total(kind: FaultKind) -> float:
            return sum(fault.amount for fault in active if fault.kind is kind)

        trouble = Trouble(min(1.0, total(FaultKind.LOSS)), min(1.0, total(FaultKind.COPIES)))
        if late_s := total(FaultKind.LATE):
            trouble.late, trouble.late_s = 0.5, late_s
        self._network.set_trouble(worker_id, trouble)
        if any(fault.kind is FaultKind.PARTITION for fault in active):
            self._network.cut_off(worker_id)
        else:
            self._network.heal(worker_id)
        worker = self._supervisor.workers.get(worker_id)
        if worker is not None:
            worker.slowness = max(1.0, total(FaultKind.SLOW))
