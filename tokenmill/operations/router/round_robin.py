"""Router policy: workers take turns, whatever they have to do."""

from __future__ import annotations

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot
from tokenmill.operations.router.base import Placement


class RoundRobin:
    """The turn is the number of placements so far, so that the policy needs no memory; the seed shifts the start."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        turn = snapshot.num_placed + self._seed
        member = snapshot.members[turn % len(snapshot.members)]
        return Placement(member.worker_id, f"turn {snapshot.num_placed}")
