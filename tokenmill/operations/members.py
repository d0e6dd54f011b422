"""Frozen views of the fleet that router policies, admission, health and /metrics read. The state itself: fleet.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from tokenmill.core.model_card import ModelCard
from tokenmill.core.wire import WorkerStats
from tokenmill.operations.router.knowledge import Knowledge


class MemberState(StrEnum):
    STARTING = "starting"  # expected or restarting: has not said Hello
    READY = "ready"
    DRAINING = "draining"  # finishes what it has, gets nothing new
    LOST = "lost"  # exited for good, or silent


class MemberView(msgspec.Struct, frozen=True):
    """One worker as of now. (A struct: thousands are made anew per second, one for each change.)

    num_in_flight          requests of this frontend that it was given and that have not ended
    num_unseen             of those sent, how many are on the wire: in no count of `stats` yet
    num_pending_tokens     prompt tokens of its requests that have no first token yet
    last_seen_s            when its last frame came in
    progress_s             when it last produced or computed a token, or got work after having none
    reason                 why it is not ready; "" when it is
    is_expected_back       lost or starting, and a (re)start is under way
    """

    worker_id: str
    model: str
    incarnation: int
    state: MemberState
    since_s: float
    last_seen_s: float
    progress_s: float
    card: ModelCard | None = None
    pid: int | None = None
    stats: WorkerStats = WorkerStats()
    num_in_flight: int = 0
    num_unseen: int = 0
    num_pending_tokens: int = 0
    reason: str = ""
    is_expected_back: bool = False

    @property
    def load(self) -> int:
        """Requests it has or is about to have, of every frontend."""
        return max(self.stats.num_running + self.stats.num_waiting + self.num_unseen, self.num_in_flight)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What a router policy sees: the ready workers of one model, in order of worker_id.

    num_placed   requests of this model placed so far; lets a policy without memory take turns
    order        finds the least loaded without looking at all; None: nobody keeps one
    knowledge    who holds which blocks, and how long steps take; None: nobody keeps it
    """

    model: str
    num_placed: int
    members: tuple[MemberView, ...]
    order: LeastFinder | None = field(default=None, compare=False, repr=False)
    knowledge: Knowledge | None = field(default=None, compare=False, repr=False)

    def least_loaded(self) -> list[MemberView]:
        """The members tied for the lowest rank, in no order."""
        if self.order is not None:
            return self.order.least()
        lowest = min(load_rank(member) for member in self.members)
        return [member for member in self.members if load_rank(member) == lowest]


class LeastFinder(Protocol):
    def least(self) -> list[MemberView]: ...


#: Requests per seat, so that a small worker beside a large one is not flooded; then prompt tokens still to compute.
LoadRank = tuple[float, int]


def load_rank(member: MemberView) -> LoadRank:
    seats = member.card.max_num_seqs if member.card else 1
    return (member.load / seats, member.num_pending_tokens)
