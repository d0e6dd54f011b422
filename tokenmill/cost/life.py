"""One worker process from start to exit: its time by kind, its place in the balance, and which frames to believe.

Frames of one life tile its time. They may come twice, out of order, or after the exit was seen; sums do not depend
on the order. Not responsible for: requests, and who pays for them (cost/requests).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tokenmill.core.wire import StepFrame, WorkerStats
from tokenmill.cost.rates import DeviceRate
from tokenmill.cost.tally import Amount, Tally
from tokenmill.cost.totals import TimeKind

#: Frames remembered to recognise a second copy; older ones than these are refused unseen.
_NUM_REMEMBERED = 256
#: (until_s, steps so far, requests so far): on virtual time several frames may end at one instant.
_FrameKey = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Balance:
    """
    process_s     from start to exit, or until now
    explained_s   of it, in frames, or lost at an exit
    unreported_s  of it, since the last frame of processes that run: not due yet
    unexplained_s sum over processes of what is neither, or is explained twice
    """

    process_s: float = 0.0
    explained_s: float = 0.0
    unreported_s: float = 0.0
    unexplained_s: float = 0.0

    @property
    def is_balanced(self) -> bool:
        return self.unexplained_s <= 0.01 * self.process_s

    def __add__(self, other: Balance) -> Balance:
        return Balance(
            self.process_s + other.process_s,
            self.explained_s + other.explained_s,
            self.unreported_s + other.unreported_s,
            self.unexplained_s + other.unexplained_s,
        )


class WorkerLife:
    """
    started_s  where its bill begins
    until_s    end of the newest frame; started_s before the first
    ended_s    the exit as the supervisor saw it, or the latest it can have been (its successor's start)
    stats      of the newest frame
    held_s     reported by it as busy, for deltas that had not come yet: lost, when they never come
    """

    def __init__(self, model: str, rate: DeviceRate, started_s: float) -> None:
        self.model = model
        self.rate = rate
        self.started_s = started_s
        self.until_s = started_s
        self.ended_s: float | None = None
        self.stats = WorkerStats()
        self.held_s = 0.0
        self._tallies = {kind: Tally() for kind in TimeKind}
        self._remembered: deque[_FrameKey] = deque()
        self._forgotten_until_s = -math.inf
        self._billed_from_s = started_s

    def accept(self, frame: StepFrame) -> bool:
        """Take note of a frame; False when it was here before, or its times are no times."""
        key = (frame.until_s, frame.stats.steps_total, frame.num_received)
        if not _is_sound(frame) or self._is_before_the_bill(frame):
            return False
        if not frame.deltas and _covered_s(frame) == 0:
            return True  # nothing to book, so a second copy does no harm
        if self._is_known(key):
            return False
        self._remembered.append(key)
        if len(self._remembered) > _NUM_REMEMBERED:
            self._forgotten_until_s = max(self._forgotten_until_s, self._remembered.popleft()[0])
        if frame.until_s >= self.until_s:
            self.until_s, self.stats, self.held_s = frame.until_s, frame.stats, frame.held_s
        return True

    def _is_before_the_bill(self, frame: StepFrame) -> bool:
        """Its middle decides: the ends of neighbouring frames agree only up to rounding."""
        return frame.until_s - _covered_s(frame) / 2 < self._billed_from_s

    def _is_known(self, key: _FrameKey) -> bool:
        """A second copy, or so old that it could be one."""
        if key[0] > self.until_s:
            return False
        return key[0] <= self._forgotten_until_s or key in self._remembered

    def charge(self, kind: TimeKind, seconds: float, joules: float | None) -> None:
        self._tallies[kind].charge(seconds, self.rate, joules)

    def rejoin(self, started_s: float, rate: DeviceRate) -> None:
        """It said Hello again, its bill going on at `started_s`: frames up to there went nowhere."""
        if started_s > self.until_s:
            self.charge(TimeKind.LOST, started_s - self.until_s, None)
            self.until_s = self._billed_from_s = started_s
        self.rate = rate

    def end(self, at_s: float) -> None:
        self.ended_s = at_s

    def amounts(self) -> dict[TimeKind, Amount]:
        """Time by kind; after the exit, what was not reported until then is lost (and shrinks if it comes late)."""
        amounts = {kind: tally.freeze() for kind, tally in self._tallies.items()}
        lost_s = 0.0 if self.ended_s is None else max(0.0, self.ended_s - self.until_s) + self.held_s
        if lost_s > 0:
            tail = Tally()
            tail.charge(lost_s, self.rate)
            amounts[TimeKind.LOST] += tail.freeze()
        return amounts

    def balance(self, now_s: float) -> Balance:
        end_s = max(now_s if self.ended_s is None else self.ended_s, self.until_s)
        process_s = end_s - self.started_s
        explained_s = sum(amount.seconds for amount in self.amounts().values())
        unreported_s = end_s - self.until_s + self.held_s if self.ended_s is None else 0.0
        return Balance(process_s, explained_s, unreported_s, abs(process_s - explained_s - unreported_s))


def _covered_s(frame: StepFrame) -> float:
    return frame.busy_s + frame.idle_s + frame.startup_s


def _is_sound(frame: StepFrame) -> bool:
    """Durations of a healthy clock: a frame that fails stays out, and the balance shows the hole."""
    parts = (frame.busy_s, frame.idle_s, frame.startup_s, frame.unattributed_s, *(d.seconds for d in frame.deltas))
    return math.isfinite(frame.until_s) and all(math.isfinite(part) and part >= 0 for part in parts)
