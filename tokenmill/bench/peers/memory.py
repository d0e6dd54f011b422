"""Peak memory of a process and all its children: Pss, so that pages which several share count once. Linux."""

from __future__ import annotations

import threading
from pathlib import Path

_INTERVAL_S = 1.0


def process_tree(pid: int) -> list[int]:
    """`pid` and everything below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, ()))
    return found


def tree_pss_bytes(pid: int) -> int:
    return sum(_pss_bytes(member) for member in process_tree(pid))


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


class PeakPss:
    """`with PeakPss(pid) as peak:` looks once a second and at the end; `peak.peak_bytes` afterwards."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, tree_pss_bytes(self._pid))
