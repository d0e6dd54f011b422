"""What a simulated fleet decided, as lines that can be saved, and compared with those of another run.

A line: seconds, what, whom, detail, separated by tabs. The digest covers all lines, also those that were not kept.
Not responsible for: making the run again (cli/simulate.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

import xxhash

from tokenmill.core.wire import Generate
from tokenmill.operations.actions import Send


class DecisionLog:
    """`keep`: hold the lines; without, only their number and digest."""

    def __init__(self, *, keep: bool = False) -> None:
        self.lines: list[str] = []
        self.num_lines = 0
        self._keep = keep
        self._hash = xxhash.xxh3_128()

    def note(self, now_s: float, what: str, whom: str, detail: str) -> None:
        line = f"{now_s:.9f}\t{what}\t{whom}\t{detail}"
        self._hash.update(line.encode())
        self.num_lines += 1
        if self._keep:
            self.lines.append(line)

    def sent(self, now_s: float, action: Send) -> None:
        message = action.message
        what = type(message).__name__.lower()
        if isinstance(message, Generate):
            self.note(now_s, "place", message.request.request_id, f"{action.worker_id}/{action.incarnation}")
        else:
            self.note(now_s, what, getattr(message, "request_id", ""), f"{action.worker_id}/{action.incarnation}")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def first_difference(before: Iterable[str], after: Iterable[str]) -> str | None:
    """Where two runs part, for people; None: they are the same."""
    for number, (old, new) in enumerate(zip_longest(before, after), 1):
        if old != new:
            return f"decision {number} was {old!r} and is now {new!r}"
    return None
