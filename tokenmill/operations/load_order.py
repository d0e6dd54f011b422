"""The ready workers of one model in order of load, kept up to date change by change. Pure.

Finding the least loaded of a thousand is then a look at the first group, not a walk over all of them.
Not responsible for: which change happened (fleet.py), how ties are broken (router/).
"""

from __future__ import annotations

from heapq import heappop, heappush

from tokenmill.operations.members import LoadRank, MemberView, load_rank


class LoadOrder:
    """Workers grouped by rank."""

    def __init__(self) -> None:
        self._groups: dict[LoadRank, dict[str, MemberView]] = {}
        self._ranks: list[LoadRank] = []  # a heap; ranks of empty groups go when they come up
        self._rank_of: dict[str, LoadRank] = {}

    def put(self, view: MemberView) -> None:
        """It is there, as `view` says."""
        rank, before = load_rank(view), self._rank_of.get(view.worker_id)
        if rank != before:
            if before is not None:
                self._drop(view.worker_id, before)
            self._rank_of[view.worker_id] = rank
        group = self._groups.get(rank)
        if group is None:
            group = self._groups[rank] = {}
            heappush(self._ranks, rank)
        group[view.worker_id] = view

    def remove(self, worker_id: str) -> None:
        """It is not ready any more; nothing to do when it was not."""
        rank = self._rank_of.pop(worker_id, None)
        if rank is not None:
            self._drop(worker_id, rank)

    def least(self) -> list[MemberView]:
        """All workers of the lowest rank, in no order; [] when there are none."""
        while self._ranks:
            group = self._groups[self._ranks[0]]
            if group:
                return list(group.values())
            del self._groups[heappop(self._ranks)]
        return []

    def _drop(self, worker_id: str, rank: LoadRank) -> None:
        """An empty group stays until its rank comes up: it often fills again."""
        del self._groups[rank][worker_id]
