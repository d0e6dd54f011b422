"""Starts `tokenmill serve` as a child process, waits for its ready line, stops it: for chat, demo and benchmarks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from tokenmill.core.errors import SetupError

_READY = re.compile(r"^tokenmill ready: (\S+)")
_STOP_S = 20.0


@contextmanager
def local_server(arguments: Sequence[str], *, is_quiet: bool = False, start_timeout_s: float = 600.0) -> Iterator[str]:
    """The base URL of `tokenmill serve ARGUMENTS --port 0`; it is drained and stopped at the end, whatever happens.

    is_quiet  its log is shown only when it does not come up
    """
    command = [sys.executable, "-m", "tokenmill.cli.main", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE if is_quiet else None, text=True, bufsize=1
    )
    log = _Tail(process.stderr) if process.stderr is not None else None
    try:
        yield _wait_ready(process, log, start_timeout_s)
    finally:
        _stop(process)


class _Tail:
    """Reads a stream to its end in a thread, keeping the last lines; an unread pipe would stop the server."""

    def __init__(self, stream: IO[str], num_lines: int = 20) -> None:
        self._stream = stream
        self._num_lines = num_lines
        self.lines: list[str] = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self.lines = [*self.lines, line.rstrip()][-self._num_lines :]


def _wait_ready(process: subprocess.Popen[str], log: _Tail | None, timeout_s: float) -> str:
    """The URL of the ready line. The rest of the output is read on in a thread."""
    assert process.stdout is not None
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if match := _READY.match(line):
                _Tail(process.stdout)
                return match.group(1)
    finally:
        timer.cancel()
    code = process.wait()
    if log is not None:
        log.thread.join(1.0)
    reason = " / ".join(log.lines[-3:]) if log is not None and log.lines else "see its output above"
    raise SetupError(f"the server did not come up (exit code {code}): {reason.removeprefix('tokenmill: ')}")


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
