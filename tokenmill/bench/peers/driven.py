"""An engine in a process of its own, driven in JSON lines (drivers/main.py). Not responsible for: what it is asked."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tokenmill.core.errors import SetupError

_MAIN = Path(__file__).parent / "drivers" / "main.py"


class DrivenProcess:
    """`log` takes what the library prints."""

    def __init__(self, name: str, python: Path, adapter: str, env: Mapping[str, str], log: Path) -> None:
        self._name, self._log_path = name, log
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [str(python), str(_MAIN), adapter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **env},
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._answers.put(line)
        self._answers.put(None)

    def ask(self, what: str, *, timeout_s: float = 600.0, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise SetupError(f"{self._name} did not answer {what!r} within {timeout_s:g} s: {self._last()}") from None
        except BrokenPipeError:
            line = None
        if line is None:
            raise SetupError(f"{self._name} has ended: {self._last()}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise SetupError(f"{self._name}: {told['error']} (log: {self._log_path})")
        return told

    def _last(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(lines[-3:]) or "it said nothing"

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._log.close()
