"""What the supervisor decides: start, restart after a delay, give up, stop, and what to tell the frontend. Pure.

Events in (ends of processes, signals, time), orders out; serve.py carries them out. Not responsible for: processes
and sockets (launcher/), what a worker does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from tokenmill.core.wire import WorkerExited
from tokenmill.operations.config import OperationsConfig

#: What a process returns when it can never start as asked (core/errors: SetupError).
SETUP_FAILED = 2
#: Signals this close together are one: timeout(1) and some shells tell a child and then its whole group.
ECHO_S = 0.05


class Role(Enum):
    FRONTEND = auto()
    WORKER = auto()


@dataclass(frozen=True, slots=True)
class Launch:
    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask it to finish what it does and go (SIGTERM)."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End it and its children now (SIGKILL to its process group)."""

    name: str


@dataclass(frozen=True, slots=True)
class Report:
    """To the frontend, which must know at once whom not to wait for."""

    notice: WorkerExited


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing runs any more. `failed`: the process whose failed start ended it all, if that was the reason."""

    exit_code: int
    message: str = ""
    failed: str | None = None


Order = Launch | Terminate | Kill | Report | Finish


class Phase(Enum):
    RUNNING = auto()
    DRAINING = auto()  # the frontend finishes its requests, workers serve it
    STOPPING = auto()  # the frontend is gone, workers are asked to go
    KILLING = auto()  # all were killed
    OVER = auto()


@dataclass(slots=True)
class _Process:
    """
    started_s     when it was last started
    launch_at_s   a (re)start is due then
    crashes       when it ended unasked, inside the window
    """

    role: Role
    incarnation: int = 0
    is_running: bool = False
    started_s: float = 0.0
    launch_at_s: float | None = None
    has_given_up: bool = False
    last_notice: WorkerExited | None = None
    crashes: deque[float] = field(default_factory=deque)


class Supervisor:
    """One frontend and its workers, by name. Call `tick` when `next_tick_s` says so, and after every event."""

    def __init__(self, frontend: str, workers: Sequence[str], config: OperationsConfig) -> None:
        self._config = config
        self._frontend = frontend
        self._processes = {frontend: _Process(Role.FRONTEND)} | {name: _Process(Role.WORKER) for name in workers}
        assert len(self._processes) == len(workers) + 1, f"names are not unique: {frontend}, {list(workers)}"
        self.phase = Phase.RUNNING
        self._phase_ends_s: float | None = None
        self._drained_at_s = -math.inf
        self._end = Finish(0)

    # -- events --

    def start(self, now_s: float) -> list[Order]:
        """Everything at once: workers load while the frontend opens its door."""
        return [self._launch(name, now_s) for name in self._processes]

    def exited(self, name: str, exit_code: int, now_s: float) -> list[Order]:
        """A process ended; `exit_code` is negative for a signal, as subprocess has it."""
        process = self._processes[name]
        assert process.is_running, f"{name} ended twice"
        process.is_running = False
        orders: list[Order] = []
        if self.phase is Phase.RUNNING:
            orders += self._unasked(name, process, exit_code, now_s)
        elif name == self._frontend and self.phase is Phase.DRAINING:
            orders += self._stop_workers(now_s)
        if process.role is Role.WORKER:
            process.last_notice = _notice(name, process, exit_code, now_s)
            orders.insert(0, Report(process.last_notice))
        return orders + self._finish_if_over()

    def unresponsive(self, name: str, incarnation: int) -> list[Order]:
        """The frontend says that this life of a worker does not answer."""
        process = self._processes.get(name)
        is_meant = process is not None and process.is_running and process.incarnation == incarnation
        return [Kill(name)] if is_meant else []

    def terminate(self, now_s: float) -> list[Order]:
        """A signal to the deployment: the first drains it, the second stops it. An echo is no second one."""
        if self.phase is Phase.RUNNING:
            self._drained_at_s = now_s
            return self._drain(now_s)
        if now_s - self._drained_at_s < ECHO_S:
            return []
        if self.phase in (Phase.DRAINING, Phase.STOPPING):
            self._end = Finish(1, "stopped by a second signal, before everything had ended")
            return self._kill_all(now_s)
        return []

    def tick(self, now_s: float) -> list[Order]:
        """What is due: restarts, and the ends of patience."""
        if self.phase is Phase.RUNNING:
            due = [name for name, process in self._processes.items() if _is_due(process, now_s)]
            return [order for name in due for order in self._relaunch(name, now_s)]
        if self._phase_ends_s is not None and self._phase_ends_s <= now_s:
            return self._stop_workers(now_s) if self.phase is Phase.DRAINING else self._kill_all(now_s)
        return []

    def next_tick_s(self) -> float | None:
        """When something will be due; None while only events matter."""
        if self.phase is not Phase.RUNNING:
            return self._phase_ends_s
        return min((p.launch_at_s for p in self._processes.values() if p.launch_at_s is not None), default=None)

    # -- inside --

    def _launch(self, name: str, now_s: float) -> Launch:
        process = self._processes[name]
        process.is_running, process.launch_at_s, process.started_s = True, None, now_s
        return Launch(name, process.incarnation)

    def _relaunch(self, name: str, now_s: float) -> list[Order]:
        """A new frontend knows nothing: it is told again whom not to wait for (and must not bill it again)."""
        self._processes[name].incarnation += 1
        orders: list[Order] = [self._launch(name, now_s)]
        if name == self._frontend:
            gone = [p.last_notice for p in self._processes.values() if p.has_given_up and p.last_notice]
            orders += [Report(msgspec.structs.replace(notice, started_s=None)) for notice in gone]
        return orders

    def _unasked(self, name: str, process: _Process, exit_code: int, now_s: float) -> list[Order]:
        """A process ended that should be running: bring it back, or decide that this cannot go on."""
        if exit_code == SETUP_FAILED:
            process.has_given_up = True
            if process.incarnation == 0 or process.role is Role.FRONTEND:
                self._end = Finish(SETUP_FAILED, failed=name)
                return self._kill_all(now_s)
        elif self._may_restart(process, now_s):
            process.launch_at_s = now_s + self._delay_s(process)
            return []
        else:
            process.has_given_up = True
        return self._give_up(name, exit_code, now_s)

    def _may_restart(self, process: _Process, now_s: float) -> bool:
        window = self._config.restart
        process.crashes.append(now_s)
        while process.crashes[0] <= now_s - window.window_s:
            process.crashes.popleft()
        return len(process.crashes) <= window.max_crashes

    def _delay_s(self, process: _Process) -> float:
        limits = self._config.restart
        return min(limits.max_delay_s, limits.first_delay_s * 2 ** (len(process.crashes) - 1))

    def _give_up(self, name: str, exit_code: int, now_s: float) -> list[Order]:
        """Without this process, is there any use in going on?"""
        workers = [p for p in self._processes.values() if p.role is Role.WORKER]
        if name != self._frontend and not all(worker.has_given_up for worker in workers):
            return []
        what = name if name == self._frontend else "every worker"
        window = self._config.restart
        self._end = Finish(
            1,
            f"{what} keeps failing (last exit code {exit_code}; more than {window.max_crashes} crashes in "
            f"{window.window_s:g} s, or a failed start): see the log above",
        )
        return self._kill_all(now_s)

    def _drain(self, now_s: float) -> list[Order]:
        for process in self._processes.values():
            process.launch_at_s = None
        if not self._processes[self._frontend].is_running:
            return self._stop_workers(now_s)
        self.phase = Phase.DRAINING
        self._phase_ends_s = now_s + self._config.drain_timeout_s + self._config.stop_timeout_s
        return [Terminate(self._frontend)]

    def _stop_workers(self, now_s: float) -> list[Order]:
        """The frontend is done, or its time is up: then everything else may go too."""
        self.phase, self._phase_ends_s = Phase.STOPPING, now_s + self._config.stop_timeout_s
        orders: list[Order] = [Kill(self._frontend)] if self._processes[self._frontend].is_running else []
        orders += [Terminate(n) for n, p in self._processes.items() if p.role is Role.WORKER and p.is_running]
        return orders + self._finish_if_over()

    def _kill_all(self, now_s: float) -> list[Order]:
        for process in self._processes.values():
            process.launch_at_s = None
        self.phase, self._phase_ends_s = Phase.KILLING, now_s + self._config.stop_timeout_s
        orders: list[Order] = [Kill(name) for name, process in self._processes.items() if process.is_running]
        return orders + self._finish_if_over()

    def _finish_if_over(self) -> list[Order]:
        is_over = self.phase not in (Phase.RUNNING, Phase.OVER)
        if not is_over or any(process.is_running for process in self._processes.values()):
            return []
        self.phase, self._phase_ends_s = Phase.OVER, None
        return [self._end]


def _notice(name: str, process: _Process, exit_code: int, now_s: float) -> WorkerExited:
    return WorkerExited(
        worker_id=name,
        incarnation=process.incarnation,
        exit_code=exit_code,
        at_s=now_s,
        will_restart=process.launch_at_s is not None,
        started_s=process.started_s,
    )


def _is_due(process: _Process, now_s: float) -> bool:
    return process.launch_at_s is not None and process.launch_at_s <= now_s
