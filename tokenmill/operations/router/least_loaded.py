"""Router policy: the worker with the fewest requests, then with the fewest prompt tokens still to compute."""

from __future__ import annotations

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.candidates import first_of_tie


class LeastLoaded:
    """The rank is members.load_rank; ties are broken by the seed."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        best, *others = tied = snapshot.least_loaded()
        if others:
            place = first_of_tie(request, self._seed)
            best = min(tied, key=lambda member: place(member.worker_id))
        return Placement(best.worker_id, f"load {best.load}, {best.num_pending_tokens} prompt tokens pending")
