"""Starts `tokenmill serve` as a child process, waits for its ready line, stops it: for chat, demo and benchmarks."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tokenmill.core.errors import SetupError

_READY = re.compile(r"^tokenmill ready: (\S+)")
_STOP_S = 60.0
_NUM_KEPT_LINES = 20


@contextmanager
def local_server(
    arguments: Sequence[str], *, is_quiet: bool = False, start_timeout_s: float = 600.0, tree: Path | None = None
) -> Iterator[str]:
    """The base URL of `tokenmill serve ARGUMENTS --port 0`; it is drained and stopped at the end, whatever happens.

    is_quiet  its log is shown only when it does not come up
    tree      a checkout of another commit, whose code is to run in place of ours
    """
    command = [sys.executable, "-m", "tokenmill.cli.main", "serve", *arguments, "--port", "0"]
    stderr = subprocess.PIPE if is_quiet else None
    env = None if tree is None else os.environ | {"PYTHONPATH": str(tree)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, bufsize=1, cwd=tree, env=env)
    found: queue.Queue[str | None] = queue.Queue()
    readers = [_Reader(process.stdout, lambda line: _look_for_url(line, found), lambda: found.put(None))]
    if process.stderr is not None:
        readers.append(_Reader(process.stderr))
    try:
        yield _wait_ready(process, found, readers[-1], start_timeout_s)
    finally:
        _stop(process)
        for reader in readers:
            reader.join()


class _Reader(threading.Thread):
    """Reads a stream to its end, since an unread pipe would stop the server; keeps the last lines."""

    def __init__(
        self,
        stream: IO[str] | None,
        on_line: Callable[[str], None] = lambda line: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream = stream
        self._on_line = on_line
        self._on_end = on_end
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        with self._stream:
            for line in self._stream:
                self.lines = [*self.lines, line.rstrip()][-_NUM_KEPT_LINES:]
                self._on_line(line)
        self._on_end()


def _look_for_url(line: str, found: queue.Queue[str | None]) -> None:
    if match := _READY.match(line):
        found.put(match.group(1))


def _wait_ready(process: subprocess.Popen[str], found: queue.Queue[str | None], log: _Reader, timeout_s: float) -> str:
    """The URL of the ready line; SetupError with the last words of the log when there is none."""
    try:
        url = found.get(timeout=timeout_s)
    except queue.Empty:
        raise SetupError(f"the server was not ready within {timeout_s:g} s: see its log, or give it longer") from None
    if url is not None:
        return url
    code = process.wait()
    log.join(1.0)
    reason = " / ".join(line.removeprefix("tokenmill: ") for line in log.lines[-3:]) or "see its output above"
    raise SetupError(f"the server did not come up (exit code {code}): {reason}")


def _stop(process: subprocess.Popen[str]) -> None:
    """Drain; then insist; then kill."""
    for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(signum)
        try:
            process.wait(_STOP_S)
            return
        except subprocess.TimeoutExpired:
            continue
