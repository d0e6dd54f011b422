"""The prefix index of one model: which worker could serve how much of a prompt, by what the workers tell. Pure.

Soft state, rebuilt from the workers' snapshots. What it does not know it says: a worker whose events were missed, that
is of another format, or for whose blocks there is no room, is listed with the reason. A promise it gets wrong costs
some prefill, never an answer. Not responsible for: choosing (policies), the wire (dispatch.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tokenmill.core.kv_events import BlocksRemoved, BlocksStored, KVChange, KVEvents, KVFormat, KVSnapshot
from tokenmill.operations.router.hits import Run, intersect, leading_runs, longest, shorten_to_windows
from tokenmill.operations.router.holders import HolderTable
from tokenmill.operations.router.predictions import Predictions

_log = logging.getLogger(__name__)

#: A snapshot that does not come is asked for again; a worker that did not fit is not asked so often.
_ASK_AGAIN_S = 1.0
_TRY_ROOM_AGAIN_S = 10.0
_ROOM_SHARE = 0.9
_SWEEP_BLOCKS = 20_000


class Awareness(StrEnum):
    AWARE = "aware"
    WAITING = "waiting"  # for its snapshot: what was known of it is used until then, and may be old
    PARTIAL = "partial"  # some of its blocks had no room
    REFUSED = "refused"  # its hashes mean something else


@dataclass(slots=True)
class _Worker:
    """
    number      of the last message that was taken
    num_blocks  (block, group) pairs it is known to hold
    asked_s     when it was last asked for a snapshot
    """

    incarnation: int
    bit: int = 0
    number: int = 0
    num_blocks: int = 0
    state: Awareness = Awareness.WAITING
    reason: str = "its snapshot has not come"
    asked_s: float | None = None
    format: KVFormat | None = None


class PrefixIndex:
    """
    max_blocks  most (block, group) entries, all workers together; beyond it blocks are left out and their workers are
                PARTIAL. About 100 bytes each (`tokenmill bench router` prints it)
    """

    def __init__(self, max_blocks: int = 4_000_000) -> None:
        self.max_blocks = max_blocks
        self.counts: Counter[str] = Counter()
        self.predictions = Predictions()
        self._format: KVFormat | None = None
        self._tables: list[HolderTable] = []
        self._workers: dict[str, _Worker] = {}
        self._names: list[str | None] = []  # by position of the bit
        self._alive = self._retired = self._sweeping = 0
        self._sweep_at = 0

    # -- workers --

    def join(self, worker_id: str, incarnation: int) -> None:
        """A life of a worker (or a new session of it) begins: nothing is known of it, its snapshot is wanted."""
        self.leave(worker_id)
        self._workers[worker_id] = _Worker(incarnation)

    def leave(self, worker_id: str) -> None:
        """It is gone, and its blocks with it. Nothing to do when it is not here."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        self._retire(worker)
        if not self._alive:
            self._format = None
            for other in self._workers.values():
                if other.state is Awareness.REFUSED:
                    self._want(other, "the workers of another format are gone")

    def wanted(self, now_s: float) -> list[str]:
        """Workers to ask for a snapshot now; they count as asked."""
        if len(self) < _ROOM_SHARE * self.max_blocks:
            for worker in self._workers.values():
                waited_s = now_s - (worker.asked_s or 0.0)
                if worker.state is Awareness.PARTIAL and waited_s >= _TRY_ROOM_AGAIN_S:
                    self._want(worker, "there is room for its blocks again")
        due = []
        for worker_id, worker in self._workers.items():
            is_due = worker.asked_s is None or now_s - worker.asked_s >= _ASK_AGAIN_S
            if worker.state is Awareness.WAITING and is_due:
                worker.asked_s = now_s
                due.append(worker_id)
        return due

    # -- what workers tell --

    def apply(self, events: KVEvents) -> None:
        """Take one numbered message; one that is not the next is not taken, and a missing one is noticed."""
        worker = self._workers.get(events.worker_id)
        if worker is None or worker.incarnation != events.incarnation:
            self.counts["unknown"] += 1
        elif worker.state in (Awareness.WAITING, Awareness.REFUSED):
            self.counts["ignored"] += 1  # its snapshot will have them, or it is never used
        elif events.number <= worker.number:
            self.counts["stale"] += 1
        elif events.number > worker.number + 1:
            self.counts["gaps"] += 1
            self._want(worker, f"messages {worker.number + 1} to {events.number - 1} never came")
        elif not all(self._is_possible(change) for change in events.changes):
            self.counts["refused"] += 1
            self._refuse(events.worker_id, worker, "it tells of a cache group that its snapshot did not have")
        else:
            worker.number = events.number
            for change in events.changes:
                self._change(events.worker_id, worker, change)

    def load(self, snapshot: KVSnapshot) -> None:
        """All that a worker has, instead of what was known of it."""
        worker = self._workers.get(snapshot.worker_id)
        if worker is None or worker.incarnation != snapshot.incarnation:
            self.counts["unknown"] += 1
            return
        if worker.state is not Awareness.WAITING:
            self.counts["stale"] += 1  # an answer to a question that was asked twice
            return
        difference = self._adopt(snapshot)
        if difference is not None:
            self.counts["refused"] += 1
            self._refuse(snapshot.worker_id, worker, difference)
            return
        self._retire(worker)
        worker.bit = self._new_bit(snapshot.worker_id)
        worker.number, worker.format = snapshot.number, snapshot.format
        worker.state, worker.reason = Awareness.AWARE, ""
        self.counts["snapshots"] += 1
        for group, hashes in enumerate(snapshot.hashes):
            self._store(snapshot.worker_id, worker, group, hashes)

    def _adopt(self, snapshot: KVSnapshot) -> str | None:
        """The first worker says what the format is. -> what is wrong with this one's."""
        others = [w for name, w in self._workers.items() if w.bit and name != snapshot.worker_id]
        if self._format is None or not others:
            if len(snapshot.hashes) != len(snapshot.format.groups):
                return "its snapshot does not have the groups of its format"
            if self._format != snapshot.format:
                self._format = snapshot.format
                self._tables = [HolderTable() for _ in snapshot.format.groups]
                self._retired = self._sweeping = 0  # their blocks went with the tables
                self._names = [name if self._alive >> at & 1 else None for at, name in enumerate(self._names)]
            return None
        difference = self._format.difference(snapshot.format)
        if difference is None and len(snapshot.hashes) != len(self._format.groups):
            difference = "its snapshot does not have the groups of its format"
        return difference

    def _is_possible(self, change: KVChange) -> bool:
        return not isinstance(change, BlocksStored | BlocksRemoved) or 0 <= change.group < len(self._tables)

    def _change(self, worker_id: str, worker: _Worker, change: KVChange) -> None:
        if isinstance(change, BlocksStored):
            self._store(worker_id, worker, change.group, change.hashes)
        elif isinstance(change, BlocksRemoved):
            worker.num_blocks -= self._tables[change.group].remove(change.hashes, worker.bit)
        else:
            self._retire(worker)
            worker.bit = self._new_bit(worker_id)

    def _store(self, worker_id: str, worker: _Worker, group: int, hashes: Sequence[bytes]) -> None:
        num_new, num_left_out = self._tables[group].store(hashes, worker.bit, self.max_blocks - len(self))
        worker.num_blocks += num_new
        self.counts["blocks"] += num_new
        if num_left_out:
            self.counts["left_out"] += num_left_out
            if worker.state is Awareness.AWARE:
                worker.state = Awareness.PARTIAL
                worker.reason = f"the index is full ({self.max_blocks} blocks): some of its blocks are not in it"
                _log.error("cache awareness of worker %s is partial: %s", worker_id, worker.reason)

    def _want(self, worker: _Worker, reason: str) -> None:
        worker.state, worker.reason, worker.asked_s = Awareness.WAITING, reason, None

    def _refuse(self, worker_id: str, worker: _Worker, reason: str) -> None:
        self._retire(worker)
        worker.state, worker.reason = Awareness.REFUSED, reason
        _log.error("worker %s is routed without its cache: %s", worker_id, reason)

    # -- questions --

    def runs(self, hashes: Sequence[bytes]) -> list[Run]:
        """Workers by the blocks of this prompt they hold (or are about to), longest first (hits.py)."""
        if self._format is None or not hashes:
            return []
        runs: list[Run] | None = None
        windows = []
        for group, table in zip(self._format.groups, self._tables, strict=True):
            if group.window_blocks is not None:
                windows.append((table.workers_of, group.window_blocks))
                continue
            limit = len(hashes) if runs is None else runs[0][0]
            found = leading_runs(table.workers_of, hashes, self._alive, limit)
            runs = found if runs is None else intersect(runs, found)
            if not runs:
                break
        held = shorten_to_windows(runs or [], windows, hashes)
        together = longest(held, self.predictions.runs(hashes, self._alive))
        rebuilt = self._format.rebuild_blocks
        return [(n - rebuilt, workers) for n, workers in together if n > rebuilt] if rebuilt else together

    def predict(self, request_id: str, worker_id: str, hashes: Sequence[bytes]) -> None:
        """A request was just sent there: it will hold these blocks, until `predictions.settle` says otherwise."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.bit and hashes:
            self.predictions.add(request_id, worker.bit, hashes)

    def bit_of(self, worker_id: str) -> int:
        """0: nothing is known of it."""
        worker = self._workers.get(worker_id)
        return 0 if worker is None else worker.bit

    def incarnation_of(self, worker_id: str) -> int | None:
        worker = self._workers.get(worker_id)
        return None if worker is None else worker.incarnation

    def name_at(self, position: int) -> str | None:
        """The worker whose bit is at this position."""
        return self._names[position]

    @property
    def num_groups(self) -> int:
        return len(self._tables)

    def num_blocks_of(self, worker_id: str) -> int:
        worker = self._workers.get(worker_id)
        return 0 if worker is None else worker.num_blocks

    def lost(self) -> dict[str, str]:
        """Workers that are routed to without (all of) their cache, and why."""
        return {
            worker_id: f"{worker.state}: {worker.reason}"
            for worker_id, worker in sorted(self._workers.items())
            if worker.state is not Awareness.AWARE
        }

    def state_of(self, worker_id: str) -> Awareness | None:
        worker = self._workers.get(worker_id)
        return None if worker is None else worker.state

    def __len__(self) -> int:
        """Entries, those that only workers hold that are gone included until they are swept."""
        return sum(map(len, self._tables))

    # -- bits --

    def _new_bit(self, worker_id: str) -> int:
        try:
            at = self._names.index(None)
        except ValueError:
            at = len(self._names)
            self._names.append(None)
        self._names[at] = worker_id
        self._alive |= 1 << at
        return 1 << at

    def _retire(self, worker: _Worker) -> None:
        """Its blocks are no longer found; the bit is free again when no table has it."""
        self._alive &= ~worker.bit
        self._retired |= worker.bit
        self.predictions.forget(worker.bit)
        worker.bit = worker.num_blocks = 0

    def sweep(self, num_blocks: int = _SWEEP_BLOCKS) -> None:
        """Some of the work of forgetting workers that are gone. Call it several times a second."""
        if not self._sweeping:
            if not self._retired:
                return
            self._sweeping, self._retired = self._retired, 0
            self._sweep_at = 0
            for table in self._tables:
                table.begin_sweep()
        while self._sweep_at < len(self._tables):
            if self._tables[self._sweep_at].sweep(self._sweeping, num_blocks) == num_blocks:
                return
            self._sweep_at += 1
        for at in range(self._sweeping.bit_length()):
            if self._sweeping >> at & 1:
                self._names[at] = None
        self._sweeping = 0

    def check_integrity(self) -> None:
        """Assert that bits, names and counts agree."""
        seen = 0
        for worker_id, worker in self._workers.items():
            if not worker.bit:
                continue
            assert not seen & worker.bit and self._alive & worker.bit, f"{worker_id}: bit {worker.bit:b}"
            assert self._names[worker.bit.bit_length() - 1] == worker_id, f"{worker_id}: named otherwise"
            seen |= worker.bit
            held = sum(1 for table in self._tables for mask in table.workers_of.values() if mask & worker.bit)
            assert held == worker.num_blocks, f"{worker_id}: {held} blocks, counted {worker.num_blocks}"
        assert seen == self._alive, f"alive {self._alive:b}, of workers {seen:b}"
        assert not self._alive & (self._retired | self._sweeping), "a retired bit is in use"
        assert len(self) <= self.max_blocks, f"{len(self)} entries of {self.max_blocks}"
        for table in self._tables:
            assert all(table.workers_of.values()), "an entry nobody holds"
