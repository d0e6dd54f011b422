"""Driving a deployment of real processes from a test: start, talk to it, find its processes, prove nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Poll until the condition is truthy, and return what it gave."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def is_alive(pid: int) -> bool:
    """A zombie counts as gone: it holds nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class Fleet:
    """A running deployment. Its temporary directory is its own, so that whatever it leaves behind is seen."""

    def __init__(
        self, *args: str, workers: int = 1, operations: dict | None = None, simulated: dict | None = None
    ) -> None:
        self.tmp = tempfile.TemporaryDirectory(prefix="ops", dir="/tmp")
        self.control = f"{self.tmp.name}/c"
        self.seen: set[int] = set()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.operations.ops_serve",
                f"--control={self.control}",
                f"--workers={workers}",
                f"--operations-config={json.dumps(operations or {})}",
                f"--simulated={json.dumps(simulated or {})}",
                *args,
            ],
            env={**os.environ, "TMPDIR": self.tmp.name, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.note_pids()
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        for pid in self.seen:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.tmp.cleanup()

    # -- processes --

    @property
    def run_dirs(self) -> list[Path]:
        return list(Path(self.tmp.name).glob("tokenmill-*"))

    def note_pids(self) -> None:
        if is_alive(self.process.pid):
            self.seen.update(children_of(self.process.pid))

    def pid_of(self, name: str) -> int:
        """Of the frontend or a worker that runs now."""
        mark = "tests.operations.ops_frontend" if name == "frontend" else f"--worker-id={name} "
        self.note_pids()
        return eventually(
            lambda: next((pid for pid in children_of(self.process.pid) if mark in command_of(pid)), None), name
        )

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the deployment ended with {self.process.returncode}: {self.stderr()}")
            try:
                return all(member["state"] == "ready" for member in self.members().values())
            except (OSError, json.JSONDecodeError):
                return False

        eventually(is_ready, "every worker ready")
        self.note_pids()

    def stderr(self) -> str:
        """Once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    def assert_nothing_left(self) -> None:
        eventually(lambda: not any(map(is_alive, self.seen)), f"all of {self.seen} gone", 10)
        eventually(lambda: not self.run_dirs, f"run directories gone: {self.run_dirs}", 10)

    # -- talking --

    def ask(self, op: str, **more: Any) -> Any:
        async def main() -> Any:
            reader, writer = await asyncio.open_unix_connection(self.control)
            writer.write(json.dumps({"op": op, **more}).encode() + b"\n")
            answer = await reader.readline()
            writer.close()
            return json.loads(answer)

        return asyncio.run(main())

    def members(self) -> dict[str, dict]:
        return {member["worker_id"]: member for member in self.ask("members")}

    async def stream(self, request_id: str, **asked: Any) -> AsyncIterator[dict]:
        """The lines of one generation; closing the iterator closes the connection."""
        reader, writer = await asyncio.open_unix_connection(self.control)
        try:
            writer.write(json.dumps({"op": "generate", "request_id": request_id, **asked}).encode() + b"\n")
            while line := await reader.readline():
                yield json.loads(line)
        finally:
            writer.close()

    async def collect(self, request_id: str, on_first: Callable[[], None] | None = None, **asked: Any) -> Answer:
        answer = Answer()
        async with aclosing(self.stream(request_id, **asked)) as lines:
            async for line in lines:
                answer.take(line)
                if on_first is not None and answer.ids:
                    on_first()
                    on_first = None
        return answer


class Answer:
    """What a client saw of one generation."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.finish: str | None = None
        self.error: dict | None = None

    def take(self, line: dict) -> None:
        if "error" in line:
            self.error = line["error"]
        else:
            self.ids += line["ids"]
            self.finish = line["finish"] or self.finish

    def assert_counts(self, num_tokens: int = 4) -> None:
        """S32: token n+1 follows token n, from the prompt on; a doubled or missing one shows."""
        assert self.ids == [(num_tokens + 1 + i) % 256 for i in range(len(self.ids))], self.ids
