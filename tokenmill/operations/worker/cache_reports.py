"""Numbers what a worker tells of its prefix cache, once somebody wants to know. Not responsible for: what is in it."""

from __future__ import annotations

from typing import Protocol

from tokenmill.core.kv_events import KVChange, KVEvents, KVFormat, KVSnapshot


class Log(Protocol):
    """`engine.kvcache.kv_log.KVLog` is one."""

    format: KVFormat

    def take(self) -> tuple[KVChange, ...]: ...

    def snapshot(self) -> tuple[list[bytes], ...]: ...


class CacheReports:
    def __init__(self, worker_id: str, incarnation: int) -> None:
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._number = 0
        self._log: Log | None = None

    def begin(self, log: Log) -> KVSnapshot:
        """Everything as of now; changes follow. Also the repair when some of them were lost."""
        self._log = log
        return KVSnapshot(
            worker_id=self._worker_id,
            incarnation=self._incarnation,
            number=self._number,
            format=log.format,
            hashes=log.snapshot(),
        )

    def take(self) -> KVEvents | None:
        """What changed since; None: nothing, or nobody asked."""
        changes = () if self._log is None else self._log.take()
        if not changes:
            return None
        self._number += 1
        return KVEvents(worker_id=self._worker_id, incarnation=self._incarnation, number=self._number, changes=changes)
