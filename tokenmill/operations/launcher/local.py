"""Launcher on this machine: child processes, each in a process group of its own: a terminal's Ctrl-C is ours alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence

from tokenmill.core.errors import ResourceError
from tokenmill.operations.launcher.base import Ended

_CLOSE_TIMEOUT_S = 10.0


class LocalLauncher:
    """Children share our stdout and stderr and read no stdin. Use it in the main thread: children watch for its end."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._ends: asyncio.Queue[Ended] = asyncio.Queue()

    async def launch(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
        assert name not in self._processes, f"{name} runs already"
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, env={**os.environ, **env}, process_group=0
            )
        except OSError as error:
            raise ResourceError(f"cannot start {name}: {error.strerror} ({argv[0]})") from error
        self._processes[name] = process
        self._watchers[name] = asyncio.create_task(self._watch(name, process), name=f"watch-{name}")
        return process.pid

    def terminate(self, name: str) -> None:
        if name in self._processes:
            with contextlib.suppress(ProcessLookupError):
                self._processes[name].send_signal(signal.SIGTERM)

    def kill(self, name: str) -> None:
        if name in self._processes:
            _kill_group(self._processes[name].pid)

    async def next_end(self) -> Ended:
        return await self._ends.get()

    async def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        if self._watchers:
            await asyncio.wait(self._watchers.values(), timeout=_CLOSE_TIMEOUT_S)

    async def _watch(self, name: str, process: Process) -> None:
        exit_code = await process.wait()
        _kill_group(process.pid)  # what it may have left behind
        del self._processes[name], self._watchers[name]
        self._ends.put_nowait(Ended(name, exit_code))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
