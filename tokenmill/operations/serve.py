"""Run a deployment on this machine: a run directory, one frontend, its workers, until they end or a signal comes.

Not responsible for: decisions (supervisor.py), what the command lines are (the caller gives them).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import ResourceError
from tokenmill.core.wire import WorkerExited, decode_to_supervisor, encode
from tokenmill.operations.addresses import MAX_IPC_PATH, SUPERVISOR, frontend_endpoint
from tokenmill.operations.child import RUN_DIR_PREFIX, read_setup_error, remove_run_dir
from tokenmill.operations.config import OperationsConfig
from tokenmill.operations.launcher.base import Launcher
from tokenmill.operations.launcher.local import LocalLauncher
from tokenmill.operations.supervisor import Finish, Kill, Launch, Order, Report, Supervisor, Terminate

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What a command line must tell the process. `started_s` is host-monotonic: its bill begins there."""

    run_dir: Path
    name: str
    incarnation: int
    started_s: float
    parent_pid: int


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """`argv` writes the command line of one life of the process; `env` is added to the environment."""

    name: str
    argv: Callable[[LaunchContext], Sequence[str]]
    env: Mapping[str, str] = field(default_factory=dict)


async def serve(
    frontend: ProcessSpec,
    workers: Sequence[ProcessSpec],
    config: OperationsConfig,
    *,
    launcher: Launcher | None = None,
    clock: Clock | None = None,
) -> int:
    """Run until the end and return the exit code; a start that failed as asked is raised as its SetupError.

    Call it in the main thread: it takes SIGTERM and SIGINT over. The first drains, the second stops.
    """
    run_dir = make_run_dir()
    deployment = _Deployment(run_dir, frontend, workers, config, launcher or LocalLauncher(), clock or SystemClock())
    try:
        return await deployment.run()
    finally:
        await deployment.close()
        remove_run_dir(run_dir)


def make_run_dir() -> Path:
    """A fresh directory, private to this user, short enough for socket names."""
    try:
        run_dir = Path(tempfile.mkdtemp(prefix=RUN_DIR_PREFIX))  # mode 0700
    except OSError as error:
        raise ResourceError(
            f"cannot create a run directory in {tempfile.gettempdir()}: {error.strerror}; free space or set TMPDIR"
        ) from error
    path = frontend_endpoint(run_dir).removeprefix("ipc://")
    if len(os.fsencode(path)) > MAX_IPC_PATH:
        run_dir.rmdir()
        raise ResourceError(
            f"the temporary directory's name is too long for a socket in it ({path}: more than {MAX_IPC_PATH} bytes): "
            "set TMPDIR to a shorter one, e.g. /tmp"
        )
    return run_dir


class _Deployment:
    def __init__(
        self,
        run_dir: Path,
        frontend: ProcessSpec,
        workers: Sequence[ProcessSpec],
        config: OperationsConfig,
        launcher: Launcher,
        clock: Clock,
    ) -> None:
        self._run_dir = run_dir
        self._specs = {spec.name: spec for spec in (frontend, *workers)}
        self._supervisor = Supervisor(frontend.name, [spec.name for spec in workers], config)
        self._launcher = launcher
        self._clock = clock
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, SUPERVISOR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.connect(frontend_endpoint(run_dir))
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._signalled)
        self._tasks = [asyncio.create_task(work) for work in (self._watch_ends(), self._listen(), self._keep_time())]
        self._give(self._supervisor.start(self._clock.now()))
        work = asyncio.create_task(self._carry_out())
        self._tasks.append(work)
        return await self._first_failure(work)

    async def _first_failure(self, work: asyncio.Task[int]) -> int:
        """The result of `work`, unless one of the tasks it depends on breaks."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task is not work and task.done():
                task.result()
        return await work

    async def close(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(signum)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._launcher.close()
        self._socket.close(linger=0)
        self._context.term()

    # -- events --

    def _signalled(self) -> None:
        self._give(self._supervisor.terminate(self._clock.now()))

    async def _watch_ends(self) -> None:
        while True:
            ended = await self._launcher.next_end()
            _log.info("%s ended with exit code %d", ended.name, ended.exit_code)
            self._give(self._supervisor.exited(ended.name, ended.exit_code, self._clock.now()))

    async def _listen(self) -> None:
        """Word of the frontend."""
        while True:
            payload = (await self._socket.recv_multipart())[-1]
            try:
                message = decode_to_supervisor(payload)
            except msgspec.DecodeError as error:
                _log.error("dropped a message that is not of this protocol: %s", error)
                continue
            _log.warning("worker %s is replaced: %s", message.worker_id, message.reason)
            self._give(self._supervisor.unresponsive(message.worker_id, message.incarnation))

    async def _keep_time(self) -> None:
        while True:
            due_s = self._supervisor.next_tick_s()
            self._changed.clear()
            try:
                async with asyncio.timeout(None if due_s is None else max(0.0, due_s - self._clock.now())):
                    await self._changed.wait()
            except TimeoutError:
                self._give(self._supervisor.tick(self._clock.now()))

    def _give(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self._orders.put_nowait(order)
        self._changed.set()

    # -- orders --

    async def _carry_out(self) -> int:
        while True:
            order = await self._orders.get()
            match order:
                case Launch():
                    await self._launch(order)
                case Terminate():
                    self._launcher.terminate(order.name)
                case Kill():
                    self._launcher.kill(order.name)
                case Report():
                    self._report(order.notice)
                case Finish():
                    return self._finish(order)

    async def _launch(self, order: Launch) -> None:
        spec = self._specs[order.name]
        context = LaunchContext(self._run_dir, order.name, order.incarnation, self._clock.now(), os.getpid())
        pid = await self._launcher.launch(order.name, spec.argv(context), spec.env)
        _log.info("%s started: pid %d, start %d", order.name, pid, order.incarnation + 1)

    def _report(self, notice: WorkerExited) -> None:
        """The wire keeps it until a frontend is there."""
        sent = self._socket.send(encode(notice), flags=zmq.NOBLOCK)
        assert isinstance(sent, asyncio.Future) and sent.done(), "a non-blocking send is decided at once"
        if sent.exception() is not None:
            _log.error("cannot tell the frontend that %s ended: %s", notice.worker_id, sent.exception())

    def _finish(self, order: Finish) -> int:
        if order.failed is not None:
            raise read_setup_error(self._run_dir, order.failed)
        if order.message:
            _log.error("%s", order.message)
        return order.exit_code
