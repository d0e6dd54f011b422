"""Router policy: the worker with the fewest requests, then with the fewest prompt tokens still to compute."""

from __future__ import annotations

import xxhash

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot, MemberView
from tokenmill.operations.router.base import Placement


class LeastLoaded:
    """The rank is members.load_rank; ties are broken by the seed."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        tied = snapshot.least_loaded()
        best = tied[0] if len(tied) == 1 else min(tied, key=lambda member: self._draw(request, member))
        return Placement(best.worker_id, f"load {best.load}, {best.num_pending_tokens} prompt tokens pending")

    def _draw(self, request: Request, member: MemberView) -> int:
        """A tie-break that depends on seed, request and worker only: equal workers share requests evenly."""
        tagged = f"{len(request.request_id)}:{request.request_id}{member.worker_id}"
        return xxhash.xxh3_64_intdigest(tagged.encode(), self._seed)
