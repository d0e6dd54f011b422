"""Router policy: the placement of least marginal cost in dollars.

What a request costs on a worker is what it takes from everybody, each second at its price:

    device    seconds of prefill left after the hit, and of its rows in later steps      x price of the worker
    evicted   blocks it displaces, as prefill that others will have to repeat            x price of the worker
    waited    seconds that it and the sequences it joins wait, at a seat's price         x price / sequences at once
    lost      its answer and those beside it, by how near their objectives come to being missed

Seconds are those that the workers' frames report. Not responsible for: which workers are looked at (candidates.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.request import Request
from tokenmill.operations.members import FleetSnapshot, MemberView
from tokenmill.operations.router.base import Placement
from tokenmill.operations.router.candidates import Candidate, break_tie, find_candidates
from tokenmill.operations.router.knowledge import Knowledge

#: Costs this near are a tie: the seed decides, or rounding would.
_TIE = 1e-9
#: An objective begins to be at risk at this share of its bound, and is surely missed at twice the rest.
_SAFE_SHARE = 0.5
#: Above this share of hits the value of a block in the cache grows no further.
_MOST_HIT_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars of one placement, by kind."""

    device_usd: float
    evicted_usd: float
    waited_usd: float
    lost_usd: float

    @property
    def usd(self) -> float:
        return self.device_usd + self.evicted_usd + self.waited_usd + self.lost_usd


class CostAware:
    reads_knowledge = True

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._nothing = Knowledge()

    def choose(self, request: Request, snapshot: FleetSnapshot) -> Placement:
        knowledge = snapshot.knowledge or self._nothing
        candidates = find_candidates(request, snapshot, knowledge, self._seed)
        model = _Prices.of(request, candidates, knowledge)
        costs = [model.cost(candidate) for candidate in candidates]
        least = min(cost.usd for cost in costs)
        tied = [i for i, cost in enumerate(costs) if cost.usd <= least * (1 + _TIE)]
        at = min(tied, key=lambda i: break_tie(request, candidates[i].member.worker_id, self._seed))
        return Placement(candidates[at].member.worker_id, _explain(costs[at]), candidates[at].num_cached_tokens)


def _explain(cost: Cost) -> str:
    parts = (("device", cost.device_usd), ("evicted", cost.evicted_usd), ("waited", cost.waited_usd))
    return ", ".join(f"{name} ${usd:.3g}" for name, usd in (*parts, ("lost", cost.lost_usd)))


@dataclass(frozen=True, slots=True)
class _Prices:
    """What is the same for all candidates of a request: how long its parts take, and what a second is worth."""

    knowledge: Knowledge
    num_prompt: int
    osl: float
    token_s: float
    row_s: float
    fixed_s: float
    seats: float

    @classmethod
    def of(cls, request: Request, candidates: list[Candidate], knowledge: Knowledge) -> _Prices:
        rates, most = knowledge.rates, request.sampling.max_tokens
        return cls(
            knowledge,
            len(request.prompt_token_ids),
            rates.mean_osl if most is None else min(rates.mean_osl, most),
            rates.prefill_token_s,
            rates.row_s,
            rates.fixed_s,
            1 + sum(_running(candidate.member) for candidate in candidates) / len(candidates),
        )

    def cost(self, candidate: Candidate) -> Cost:
        member, price = candidate.member, self.knowledge.usd_per_s
        prefill_s = (self.num_prompt - candidate.num_cached_tokens) * self.token_s
        rows_s = self.osl * self.row_s
        queue_s = self._queue_s(member)
        decode_s = self.osl * (self.fixed_s + self.row_s * (member.load + 1))
        waited_s = queue_s + prefill_s + decode_s + member.load * (prefill_s + rows_s)
        return Cost(
            device_usd=price * (prefill_s + rows_s),
            evicted_usd=price * prefill_s * self._repeats() * self._fullness(member),
            waited_usd=price / self.seats * waited_s,
            lost_usd=price * self._lost_s(member, queue_s + prefill_s),
        )

    def _queue_s(self, member: MemberView) -> float:
        """Prompts ahead of it, and the wait for a seat when all are taken."""
        pending = self.knowledge.backlog.tokens(member.worker_id) or member.num_pending_tokens
        seats = member.card.max_num_seqs if member.card else 1
        num_ahead = max(0, member.load + 1 - seats)
        turn_s = self.osl * (self.fixed_s + self.row_s * seats) / seats
        return pending * self.token_s + num_ahead * turn_s

    def _repeats(self) -> float:
        """How often a displaced token will be computed again: by the odds h that it is wanted, and each time it comes
        back it displaces another: h + h^2 + ... = h / (1 - h)."""
        share = min(self.knowledge.hit_share, _MOST_HIT_SHARE)
        return share / (1 - share)

    def _fullness(self, member: MemberView) -> float:
        """Share of its cache that has content, 0..1: only a full one evicts."""
        card, index = member.card, self.knowledge.index
        num_blocks = card.kv_capacity_tokens // card.block_size if card else 0
        num_groups = max(1, index.num_groups)
        return min(1.0, index.num_blocks_of(member.worker_id) / num_groups / num_blocks) if num_blocks else 0.0

    def _lost_s(self, member: MemberView, ttft_s: float) -> float:
        """Device seconds of answers whose tokens would no longer be good, by the odds of that."""
        slo = self.knowledge.slo
        if slo is None:
            return 0.0
        step_s = self.fixed_s + self.row_s * (member.load + 1)
        answer_s = self.num_prompt * self.token_s + self.osl * step_s / (member.load + 1)
        lost_s = answer_s * _risk(ttft_s, slo.ttft_s)
        before = _risk(self.fixed_s + self.row_s * member.load, slo.tpot_s)
        lost_s += (member.load + 1) * answer_s * max(0.0, _risk(step_s, slo.tpot_s) - before)
        return lost_s + answer_s * _risk(ttft_s + self.osl * step_s, slo.e2e_s)


def _running(member: MemberView) -> int:
    """Sequences that share its seconds; those that queue do not."""
    return min(member.load, member.card.max_num_seqs) if member.card else member.load


def _risk(value_s: float, bound_s: float | None) -> float:
    """Odds of missing an objective that is expected to come out at `value_s`: 0 far below it, 1/2 at it, then 1."""
    if bound_s is None:
        return 0.0
    return min(1.0, max(0.0, (value_s / bound_s - _SAFE_SHARE) / (2 * (1 - _SAFE_SHARE))))
