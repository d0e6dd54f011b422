"""Router policy: the worker with the fewest requests, then with the fewest prompt tokens still to compute."""

from __future__ import annotations

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.candidates import break_tie


class LeastLoaded:
    """The rank is members.load_rank; ties are broken by the seed."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        tied = snapshot.least_loaded()
        best = (
            tied[0]
            if len(tied) == 1
            else min(tied, key=lambda member: break_tie(request, member.worker_id, self._seed))
        )
        return Placement(best.worker_id, f"load {best.load}, {best.num_pending_tokens} prompt tokens pending")
