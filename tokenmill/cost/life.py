"""One worker process from start to exit: how much of its time is explained, and which frames to believe.

Frames of one life tile its time. They may come twice, out of order, or after the exit was seen; sums do not depend
on the order. Not responsible for: what the time was spent on (cost/ledger), and who pays for it (cost/requests).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from tokenmill.core.ticks import TICKS_PER_S, to_seconds, to_ticks
from tokenmill.core.wire import StepFrame
from tokenmill.cost.rates import DeviceRate, UnitRate

#: Frames remembered to recognise a second copy; older ones than these are refused unseen.
_NUM_REMEMBERED = 256
#: (until, steps so far, requests so far): on virtual time several frames may end at one instant.
_FrameKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Balance:
    """In ticks; the properties are the same in seconds.

    process      from start to exit, or until now
    explained    of it, in frames, or lost at an exit
    unreported   of it, since the last frame of processes that run: not due yet
    unexplained  sum over processes of what is neither, or is explained twice
    """

    process: int = 0
    explained: int = 0
    unreported: int = 0
    unexplained: int = 0

    @property
    def process_s(self) -> float:
        return to_seconds(self.process)

    @property
    def explained_s(self) -> float:
        return to_seconds(self.explained)

    @property
    def unreported_s(self) -> float:
        return to_seconds(self.unreported)

    @property
    def unexplained_s(self) -> float:
        return to_seconds(self.unexplained)

    @property
    def is_balanced(self) -> bool:
        return self.unexplained <= 0.01 * self.process

    def __add__(self, other: Balance) -> Balance:
        return Balance(
            self.process + other.process,
            self.explained + other.explained,
            self.unreported + other.unreported,
            self.unexplained + other.unexplained,
        )


class WorkerLife:
    """Times in ticks.

    started    where its bill begins
    until      end of the newest frame; `started` before the first
    ended      the exit as the supervisor saw it, or the latest it can have been (its successor's start)
    explained  booked on some line, what is lost included
    held       passed and not told yet, to come with later deltas: lost, when they never come
    lost       of it, from the last frame to the exit; shrinks when a frame comes late
    """

    def __init__(self, model: str, rate: DeviceRate, started: int) -> None:
        self.model = model
        self.rate = rate
        self.units: UnitRate = rate.units
        self.started = self.until = started
        self.ended: int | None = None
        self.explained = 0
        self.held = 0
        self.lost = 0
        self._remembered: deque[_FrameKey] = deque()
        self._forgotten_until = -(2**62)
        self._billed_from = started

    def accept(self, frame: StepFrame) -> bool:
        """Take note of a frame; False when it was here before, or its times are no times."""
        if not _is_sound(frame):
            return False
        key = (to_ticks(frame.until_s), frame.stats.steps_total, frame.num_received)
        if key[0] * 2 - to_ticks(covered_s(frame)) < self._billed_from * 2:
            return False  # before the bill; its middle decides, since ends of foreign frames agree only up to rounding
        if not frame.deltas and covered_s(frame) == 0:
            return True  # nothing to book, so a second copy does no harm
        if self._is_known(key):
            return False
        self._remembered.append(key)
        if len(self._remembered) > _NUM_REMEMBERED:
            self._forgotten_until = max(self._forgotten_until, self._remembered.popleft()[0])
        if key[0] >= self.until:
            self.until, self.held = key[0], to_ticks(frame.held_s)
        return True

    def _is_known(self, key: _FrameKey) -> bool:
        """A second copy, or so old that it could be one."""
        if key[0] > self.until:
            return False
        return key[0] <= self._forgotten_until or key in self._remembered

    def rejoin(self, started: int, rate: DeviceRate) -> int:
        """It said Hello again, its bill going on at `started`: ticks of frames up to there that went nowhere.

        Frames lost on the way count, too, also where later ones came through; one that is only late comes too late.
        """
        gap = max(0, started - self.started - self.explained)
        self.held = 0
        if gap:
            self.until = self._billed_from = max(started, self.until)
            self.explained += gap
        self.rate, self.units = rate, rate.units
        return gap

    def take_over(self, until: int, explained: int) -> None:
        """Go on where an earlier frontend stopped booking this process."""
        self.until = self._billed_from = until
        self.explained = explained

    def settle_lost(self) -> int:
        """How much more (or less) is lost than was booked so."""
        told = self.explained - self.lost
        lost = 0 if self.ended is None else max(0, max(self.ended, self.until) - self.started - told)
        by, self.lost = lost - self.lost, lost
        self.explained += by
        return by

    def balance(self, now: int) -> Balance:
        end = max(now if self.ended is None else self.ended, self.until)
        process = end - self.started
        unreported = end - self.until + self.held if self.ended is None else 0
        return Balance(process, self.explained, unreported, abs(process - self.explained - unreported))


def covered_s(frame: StepFrame) -> float:
    return frame.busy_s + frame.idle_s + frame.startup_s


def _is_sound(frame: StepFrame) -> bool:
    """Durations of a healthy clock: a frame that fails stays out, and the balance shows the hole."""
    if not math.isfinite(frame.until_s):
        return False
    parts = [frame.busy_s, frame.idle_s, frame.startup_s, frame.unattributed_s]
    for delta in frame.deltas:
        parts.append(delta.seconds)
        if delta.prefill_s or delta.draft_s or delta.rejected_s or delta.transfer_s:  # true of NaN too
            parts += (delta.prefill_s, delta.draft_s, delta.rejected_s, delta.transfer_s)
    return math.isfinite(math.fsum(parts)) and min(parts) >= 0 and max(parts) < 2**62 / TICKS_PER_S
