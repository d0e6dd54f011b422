"""The ledger's file: read when the frontend starts, added to every few seconds and at its end. One writer at a time.

Not responsible for: what the lines mean (cost/journal).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import Self

from tokenmill.core.clock import SystemClock
from tokenmill.core.errors import ConfigError, ResourceError
from tokenmill.core.slo import SLO
from tokenmill.cost.journal import Journal, JournalWriter, read_journal, run_row
from tokenmill.cost.ledger import Ledger

_log = logging.getLogger(__name__)


def wall_epoch_s() -> float:
    """Wall time of second 0 of the clock that frames are stamped with."""
    return time.time() - SystemClock().now()


class LedgerFile:
    """`ledger` goes on where the file ends: sums of all runs, processes of this deployment's."""

    def __init__(self, path: Path, run: str, slo: SLO | None) -> None:
        """
        run  names the deployment; its processes go on being billed when only the frontend is new
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise ResourceError(f"ledger {path} cannot be written ({error}): give another --ledger") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ResourceError(f"ledger {path} is being written by another server: give another --ledger") from None
        try:
            journal = self._read()
        except ConfigError:
            self._file.close()
            raise
        is_same_run = journal.run == run and journal.epoch_s is not None
        epoch_s = journal.epoch_s if is_same_run and journal.epoch_s is not None else wall_epoch_s()
        self.ledger = Ledger(slo, epoch_s=epoch_s)
        self.ledger.restore_parents(journal.parents)  # first: what a sub-agent spent counts for its lead
        self.ledger.restore_cells(journal.cells)
        if is_same_run:
            self.ledger.restore_lives(journal.lives.items())
        self._writer = JournalWriter(self.ledger)
        self._pending = run_row(run, epoch_s).encode()
        self.flush()

    def _read(self) -> Journal:
        with self._path.open("rb") as lines:
            journal = read_journal(lines, str(self._path))
        size = self._file.seek(0, os.SEEK_END)
        if journal.num_bytes < size:
            _log.warning("ledger %s: %d bytes of a cut-off batch dropped", self._path, size - journal.num_bytes)
            self._file.truncate(journal.num_bytes)
        self._end = journal.num_bytes
        return journal

    def flush(self, *, is_last: bool = False) -> None:
        """Write down what is new. What cannot be written waits for the next time."""
        self._pending += self._writer.batch(is_last=is_last).encode()
        if not self._pending:
            return
        try:
            self._write()
        except OSError as error:
            _log.error("ledger %s cannot be written (%s); it is tried again", self._path, error)
            with contextlib.suppress(OSError):  # half a batch may be out: the next try begins at a whole one
                self._file.truncate(self._end)

    def _write(self) -> None:
        done = 0
        while done < len(self._pending):
            done += self._file.write(self._pending[done:])
        self._end += done
        self._pending = b""

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.flush()

    def close(self) -> None:
        self.flush(is_last=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
