"""Router policy: the worker with the fewest requests, then with the fewest prompt tokens still to compute."""

from __future__ import annotations

import xxhash

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot, MemberView
from tokenmill.operations.router.base import Placement


class LeastLoaded:
    """Requests per seat (max_num_seqs), so that a small worker beside a large one is not flooded."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        best = min(snapshot.members, key=lambda member: self._rank(request, member))
        return Placement(best.worker_id, f"load {best.load}, {best.num_pending_tokens} prompt tokens pending")

    def _rank(self, request: Request, member: MemberView) -> tuple[float, int, int]:
        seats = member.card.max_num_seqs if member.card else 1
        return (member.load / seats, member.num_pending_tokens, self._draw(request, member))

    def _draw(self, request: Request, member: MemberView) -> int:
        """A tie-break that depends on seed, request and worker only: equal workers share requests evenly."""
        tagged = f"{len(request.request_id)}:{request.request_id}{member.worker_id}"
        return xxhash.xxh3_64_intdigest(tagged.encode(), self._seed)
