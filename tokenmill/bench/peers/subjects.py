"""One engine under test, loaded once and kept: started, run on a workload, scored on a text, closed.

Not responsible for: which workload runs when (run.py), or what is read from the runs (heard.py).
"""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenmill.bench.peers.driven import DrivenProcess
from tokenmill.bench.peers.heard import Heard, Run
from tokenmill.bench.peers.http_door import stream_all
from tokenmill.bench.peers.memory import PeakPss
from tokenmill.core.errors import SetupError

_START_S = 600.0
#: Perplexity counts the second half of each window, as llama.cpp's own tool does.
WINDOW_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Text:
    """What perplexity is measured on: the same in characters and in tokens."""

    path: Path
    windows: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Facts:
    """
    door            http: its own server · library: stepped in a process that holds it
    format          what it calls its weights
    startup_s       from starting the process to the first token of a short prompt, libraries in the page cache or not
    weights_bytes   as stored (peers) or as held in memory (tokenmill)
    perplexity      None: `why` says why
    """

    name: str
    weights: str
    door: str
    format: str
    weights_bytes: int | None = None
    version: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    startup_s: float | None = None
    perplexity: float | None = None
    why: str | None = None

    @property
    def key(self) -> str:
        return f"{self.name} {self.weights} ({self.door})"


class Subject(Protocol):
    facts: Facts

    def ready(self, concurrency: int, warm_up: list[int]) -> None:
        """Be started for so many requests at once; the first call is timed, later ones may do nothing."""
        ...

    def run(self, prompts: Sequence[list[int]], osl: int) -> Run: ...

    def score(self, text: Text) -> None:
        """Fill in facts.perplexity."""
        ...

    def close(self) -> None: ...


class LibrarySubject:
    """load  what its adapter is told"""

    def __init__(
        self, facts: Facts, python: Path, adapter: str, load: Mapping[str, Any], env: Mapping[str, str], log: Path
    ) -> None:
        self.facts = facts
        self._open: Callable[[], DrivenProcess] = lambda: DrivenProcess(facts.key, python, adapter, env, log)
        self._load = load
        self._process: DrivenProcess | None = None

    def _started(self) -> DrivenProcess:
        if self._process is None:
            self._process = self._open()
            told = self._process.ask("load", timeout_s=_START_S, **self._load)
            self.facts.version, self.facts.settings = told["version"], told["settings"]
            self.facts.weights_bytes = told.get("weights_bytes") or self.facts.weights_bytes
        return self._process

    def ready(self, concurrency: int, warm_up: list[int]) -> None:
        if self._process is None:
            began_s = time.perf_counter()
            self._started().ask("run", prompts=[warm_up], osl=1)
            self.facts.startup_s = time.perf_counter() - began_s
            self._process_or_error().ask("run", prompts=[warm_up[::-1]], osl=8)

    def _process_or_error(self) -> DrivenProcess:
        assert self._process is not None, "ready() first"
        return self._process

    def run(self, prompts: Sequence[list[int]], osl: int) -> Run:
        process = self._process_or_error()
        with PeakPss(process.pid) as peak:
            told = process.ask("run", prompts=list(prompts), osl=osl)
        answers = tuple(
            Heard(one["first_s"], one["last_s"], len(one["token_ids"]), tuple(one["token_ids"]))
            for one in told["requests"]
        )
        return Run(told["wall_s"], answers, peak.peak_bytes)

    def score(self, text: Text) -> None:
        told = self._started().ask("score", chunks=[list(w) for w in text.windows], first=WINDOW_TOKENS // 2)
        self.facts.why = told.get("why")
        if told["nll"] is not None:
            self.facts.perplexity = math.exp(told["nll"] / told["num_tokens"])

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class ServerSubject:
    """
    command     its command line for a port and a number of requests at once
    scorer      fills in the perplexity
    route       answers 200 once requests are taken
    is_resized  its context is divided among so many slots: started anew when the number changes
    """

    def __init__(
        self,
        facts: Facts,
        model: str,
        command: Callable[[int, int], Sequence[str]],
        scorer: Callable[[Facts, Text], None],
        log: Path,
        *,
        is_resized: bool = False,
        route: str = "/health",
    ) -> None:
        self.facts = facts
        self._model, self._command, self._scorer, self._log = model, command, scorer, log
        self._is_resized, self._route = is_resized, route
        self._server: subprocess.Popen[bytes] | None = None
        self._url, self._num_slots = "", 0

    def ready(self, concurrency: int, warm_up: list[int]) -> None:
        if self._server is not None and (not self._is_resized or concurrency == self._num_slots):
            return
        self.close()
        began_s = time.perf_counter()
        port = free_port()
        self._url, self._num_slots = f"http://127.0.0.1:{port}", concurrency
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(self._command(port, concurrency), stdout=log, stderr=log)
        self._wait()
        stream_all(self._url, self._model, [warm_up], 1)
        if self.facts.startup_s is None:
            self.facts.startup_s = time.perf_counter() - began_s
        stream_all(self._url, self._model, [warm_up[::-1]], 8)

    def _wait(self) -> None:
        assert self._server is not None
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if self._server.poll() is not None:
                break
            if is_ready(self._url + self._route):
                return
            time.sleep(0.02)
        raise SetupError(f"{self.facts.key} did not come up: see {self._log}")

    def run(self, prompts: Sequence[list[int]], osl: int) -> Run:
        assert self._server is not None, "ready() first"
        with PeakPss(self._server.pid) as peak:
            wall_s, answers = stream_all(self._url, self._model, prompts, osl)
        return Run(wall_s, tuple(answers), peak.peak_bytes)

    def score(self, text: Text) -> None:
        self._scorer(self.facts, text)

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def llama_perplexity(program: Path, model: Path, num_threads: int) -> Callable[[Facts, Text], None]:
    def score(facts: Facts, text: Text) -> None:
        sizes = ["-c", str(WINDOW_TOKENS), "--chunks", str(len(text.windows)), "-t", str(num_threads)]
        command = [str(program), "-m", str(model), "-f", str(text.path), *sizes]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=dict(os.environ))
        found = re.search(r"PPL = ([0-9.]+)", done.stdout + done.stderr)
        facts.perplexity = float(found.group(1)) if found else None
        facts.why = None if found else f"llama-perplexity: {(done.stderr or done.stdout)[-200:]}"

    return score
