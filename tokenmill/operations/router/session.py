"""Router policy: a conversation stays where it is, by rendezvous hashing, unless that worker is too full.

Every frontend computes the same owner without a shared table, and a worker that comes or goes moves only the sessions
it wins or loses. Sub-agents go with the session that started them. Not responsible for: what a worker holds.
"""

from __future__ import annotations

import xxhash

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot, MemberView
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.least_loaded import LeastLoaded

#: A worker takes sessions up to this many times the average load, and some requests more where there are few.
_MOST_LOAD = 1.25
_SLACK = 4


class SessionAffinity:
    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._others = LeastLoaded(seed=seed)

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        session = request.parent_session_id or request.session_id
        if session is None:
            return self._others.choose(request, snapshot)
        most = _MOST_LOAD * sum(member.load for member in snapshot.members) / len(snapshot.members) + _SLACK
        able = [member for member in snapshot.members if member.load < most]
        owner = max(able, key=lambda member: self._weight(session, member))
        return Placement(owner.worker_id, f"session {session}")

    def _weight(self, session: str, member: MemberView) -> int:
        return xxhash.xxh3_64_intdigest(f"{len(session)}:{session}{member.worker_id}".encode(), self._seed)
