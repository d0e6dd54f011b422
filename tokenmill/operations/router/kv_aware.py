"""Router policy: the fewest tokens to compute before this request's first one, and to hold beside it.

The additive cost that others use, in tokens: prompt tokens pending there, this prompt's without those it holds, and
the tokens that running sequences hold. Knows nothing of seconds or money (cost_aware.py).
"""

from __future__ import annotations

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.candidates import Candidate, break_tie, find_candidates
from tokenmill.operations.router.knowledge import Knowledge


class KVAware:
    reads_knowledge = True

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._nothing = Knowledge()

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        knowledge = snapshot.knowledge or self._nothing
        candidates = find_candidates(request, snapshot, knowledge, self._seed)
        num_prompt = len(request.prompt_token_ids)
        costs = {c: _cost(c, num_prompt, knowledge) for c in candidates}
        least = min(costs.values())
        tied = [c for c, cost in costs.items() if cost == least]
        best = min(tied, key=lambda c: break_tie(request, c.member.worker_id, self._seed))
        return Placement(best.member.worker_id, f"{least} tokens", best.num_cached_tokens)


def _cost(candidate: Candidate, num_prompt: int, knowledge: Knowledge) -> int:
    member = candidate.member
    capacity = member.card.kv_capacity_tokens if member.card else 0
    held = max(int(member.stats.kv_usage * capacity), member.load)
    pending = knowledge.backlog.tokens(member.worker_id) or member.num_pending_tokens
    return num_prompt - candidate.num_cached_tokens + pending + held
