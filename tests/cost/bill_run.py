"""A real deployment under load for a while, with a killed worker and a killed frontend: is its ledger the true bill?

The truth comes from outside: when the kernel started each worker process, and when it was gone. Run it by hand:
    python -m tests.cost.bill_run --seconds 60
Its last line is one JSON object. Not responsible for: starting a server (bench/local_server).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.bench.local_server import local_server
from tokenmill.core.ticks import to_seconds
from tokenmill.cost.journal import read_journal

PRICE_PER_HOUR = 3.6
NUM_WORKERS = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def kind(pid: int) -> str:
    """worker, frontend or anything else, by its command line."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return ""
    return next((name for name in ("worker", "frontend") if name in arguments), "")


def started_s(pid: int) -> float:
    """Host-monotonic second of its start, to 10 ms."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS_PER_S)


def has_ended(pid: int) -> bool:
    """All its threads are gone, whether or not its parent has looked; the first alone may be so a while before."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "ZX" and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except OSError:
        return True


@dataclass
class Life:
    started_s: float
    ended_s: float | None = None

    def seconds(self, now_s: float) -> float:
        return (now_s if self.ended_s is None else self.ended_s) - self.started_s


class Watch(threading.Thread):
    """Looks at the supervisor's children a hundred times a second."""

    def __init__(self, supervisor: int) -> None:
        super().__init__(daemon=True)
        self._supervisor = supervisor
        self._is_over = threading.Event()
        self.lives: dict[int, Life] = {}
        self.start()

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self.look()

    def look(self) -> None:
        here = {pid for pid in children(self._supervisor) if kind(pid) == "worker"}
        for pid in here - self.lives.keys():
            try:
                self.lives[pid] = Life(started_s(pid))
            except OSError:
                continue
        for pid, life in self.lives.items():
            if life.ended_s is None and has_ended(pid):
                life.ended_s = time.monotonic()

    def stop(self) -> None:
        self._is_over.set()
        self.join()


class Load(threading.Thread):
    """One client after another, of three tenants; failures while something is down are part of it."""

    def __init__(self, url: str, index: int) -> None:
        super().__init__(daemon=True)
        self._url, self._index = url, index
        self.is_over = False
        self.num_ok = self.num_failed = 0
        self.start()

    def run(self) -> None:
        turn = 0
        while not self.is_over:
            turn += 1
            prompt = [(self._index * 7 + i * (turn % 5 + 1)) % 200 + 1 for i in range(40 + turn % 60)]
            body = {"prompt": prompt, "max_tokens": 8 + turn % 16, "user": f"tenant-{self._index % 3}"}
            try:
                ask(f"{self._url}/v1/completions", body)
                self.num_ok += 1
            except (OSError, ValueError):
                self.num_failed += 1
                time.sleep(0.1)


def ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"status {error.code}") from None
    except http.client.HTTPException as error:  # the connection ended in the middle of an answer
        raise OSError(repr(error)) from None


def ask_patiently(url: str, until_s: float) -> dict[str, Any]:
    while True:
        try:
            return ask(url)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def loaded(url: str, num_clients: int) -> Iterator[list[Load]]:
    loads = [Load(url, index) for index in range(num_clients)]
    try:
        yield loads
    finally:
        for load in loads:
            load.is_over = True
        for load in loads:
            load.join(90)


def kill_one(watch: Watch, supervisor: int, name: str) -> None:
    pid = next(pid for pid in children(supervisor) if kind(pid) == name)
    os.kill(pid, signal.SIGKILL)


def run(seconds: float, arguments: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "bill.jsonl"
        more = [f"--ledger={ledger}", f"--workers={NUM_WORKERS}", f"--price-per-hour={PRICE_PER_HOUR}", "--watts=10"]
        more += ["--set", f"api.port={free_port()}"]  # the same for the second frontend
        before = set(children(os.getpid()))
        with local_server([*arguments, *more], is_quiet=True) as url:
            (supervisor,) = set(children(os.getpid())) - before
            return _measure(url, supervisor, seconds, ledger)


def _measure(url: str, supervisor: int, seconds: float, ledger: Path) -> dict[str, Any]:
    watch, start_s = Watch(supervisor), time.monotonic()
    with loaded(url, 3) as loads:
        time.sleep(seconds / 3)
        kill_one(watch, supervisor, "worker")
        time.sleep(seconds / 3)
        kill_one(watch, supervisor, "frontend")
        time.sleep(max(0.0, start_s + seconds - time.monotonic()))
    ask_patiently(f"{url}/ready", time.monotonic() + 240)
    time.sleep(1.5)  # a heartbeat of every worker
    answer = ask(f"{url}/v1/cost")
    now_s = answer["balance"]["monotonic_s"]
    watch.look()
    watch.stop()
    truth_s = sum(life.seconds(now_s) for life in watch.lives.values())
    billed_s = answer["seconds"]["total"] + answer["balance"]["unreported_seconds"]
    truth_usd = truth_s * PRICE_PER_HOUR / NUM_WORKERS / 3600
    billed_usd = answer["usd"]["total"] + answer["balance"]["unreported_seconds"] * PRICE_PER_HOUR / NUM_WORKERS / 3600
    time.sleep(6)  # the file is written every 5 s
    return {
        "start_and_end_errors_s": _compare(watch, ledger),
        "seconds": round(now_s - start_s, 3),
        "num_lives": len(watch.lives),
        "num_ok": sum(load.num_ok for load in loads),
        "num_failed": sum(load.num_failed for load in loads),
        "process_seconds": truth_s,
        "billed_seconds": billed_s,
        "process_usd": truth_usd,
        "billed_usd": billed_usd,
        "relative_error": abs(billed_usd - truth_usd) / truth_usd,
        "unexplained_seconds": answer["balance"]["unexplained_seconds"],
        "unreported_seconds": answer["balance"]["unreported_seconds"],
        "usd_by_line": answer["usd"],
    }


def _compare(watch: Watch, ledger: Path) -> list[tuple[float, float]]:
    """Of each process, how much earlier its bill starts than the kernel says, and how much later it ends."""
    with ledger.open("rb") as lines:
        billed = sorted(read_journal(lines, str(ledger)).lives.values(), key=lambda life: life.started)
    known = sorted(watch.lives.values(), key=lambda life: life.started_s)
    return [
        (
            round(true.started_s - to_seconds(life.started), 3),
            0.0 if true.ended_s is None or life.ended is None else round(to_seconds(life.ended) - true.ended_s, 3),
        )
        for life, true in zip(billed, known, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("arguments", nargs="*", default=["smollm2"], help="of `tokenmill serve`")
    given = parser.parse_args()
    print(json.dumps(run(given.seconds, given.arguments)))


if __name__ == "__main__":
    main()
