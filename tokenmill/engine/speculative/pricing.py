"""Draft lengths by price: as many rows are drafted as make a token cheapest, none where none do. Pure.

A step of R rows takes T(R), drafting for it D(wishes, depth); both are measured while serving. A draft at position i
of request r becomes a token with probability s(r, i), measured too. Rows are bought from the likeliest down, over the
whole batch, while
    (sequences + sum of s) / (T + D)
rises (adaptive verification, vLLM, July 2026). A device costs the same every second, so tokens per second is tokens
per dollar. Every so often a step tries the other choice, so that what is not chosen stays known.

Estimates can be wrong together, and keeping a proposer's caches costs in steps without drafts as well: what came of it
all is compared with plain steps, by batch size, and where it was less the proposer sleeps (results.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.engine.speculative.acceptance import Acceptance
from tokenmill.engine.speculative.cost_table import CostTable
from tokenmill.engine.speculative.depth import Candidate, StepCost
from tokenmill.engine.speculative.results import Results

#: Drafting has to promise so much before it is begun: estimates are not exact, and plain steps are certain.
_LEAST_GAIN = 1.03
#: One step in so many tries the choice that is not the best; more often while that was measured but a few times.
_PROBE_EVERY, _PROBE_EVERY_CLOSE, _PROBE_EVERY_NEW = 64, 16, 8
_FEW = 3
#: After so many plain steps in a row the proposer need not keep its caches up to date.
_DORMANT_AFTER = 32
#: A dormant proposer is woken for a while once in so many steps, to see whether the world has changed.
_WAKE_EVERY, _WAKE_FOR = 1024, 32
#: While dormant the price is looked at once in so many steps, and whenever the batch gets smaller.
_LOOK_EVERY = 16


@dataclass(frozen=True, slots=True)
class _Offer:
    """Drafts per candidate, and the tokens and seconds that a step with them is expected to give and take."""

    drafts: list[int]
    num_tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else float("inf")


class PricedDepth:
    """See depth.DepthPolicy."""

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts
        self._acceptance = Acceptance()
        self._verify = CostTable()
        self._draft: dict[int, CostTable] = {}  # by depth: sequences drafted for -> seconds
        self._keep = CostTable()  # sequences -> seconds to keep caches, without drafting
        self._results = Results()
        self._num_plans = 0
        self._num_plain = 0
        self._num_kept = 0  # drafts that stayed in the step whose cost is recorded next
        self._is_losing = False
        self._num_judged = 0  # sequences when it was last priced

    # -- what was learnt --

    def record(self, request_id: str, num_drafted: int, num_accepted: int) -> None:
        self._num_kept += num_accepted
        if num_drafted:
            self._acceptance.record(request_id, num_drafted, num_accepted)

    def record_step(self, cost: StepCost) -> None:
        num_kept, self._num_kept = self._num_kept, 0
        if not cost.num_decoding:
            return
        self._results.record(cost, num_kept)
        self._verify.record(cost.num_rows, cost.verify_s)
        if cost.num_other_rows == 0 and cost.is_kept:
            table = self._draft.setdefault(cost.depth, CostTable()) if cost.depth else self._keep
            table.record(cost.num_wishes if cost.depth else cost.num_decoding, cost.draft_s)

    def forget(self, request_id: str) -> None:
        self._acceptance.forget(request_id)

    # -- what follows --

    @property
    def is_dormant(self) -> bool:
        is_idle = self._is_losing or self._num_plain >= _DORMANT_AFTER
        return is_idle and self._num_plans % _WAKE_EVERY >= _WAKE_FOR

    def plan(self, candidates: Sequence[Candidate], num_other_rows: int) -> list[int]:
        if not candidates:
            return []
        self._num_plans += 1
        if self._num_plans % _WAKE_EVERY == 0:
            self._results.forget_drafting()
        self._is_losing = self._results.is_losing(len(candidates))
        if self._is_losing and self.is_dormant:
            return [0] * len(candidates)
        if self.is_dormant and len(candidates) >= self._num_judged and self._num_plans % _LOOK_EVERY:
            self._num_plain += 1
            return [0] * len(candidates)
        self._num_judged = len(candidates)
        plain, best = self._offers(candidates, num_other_rows)
        is_better = best.rate > _LEAST_GAIN * plain.rate
        self._num_plain = 0 if is_better else self._num_plain + 1
        other = plain if is_better else best
        is_new = self._verify.num_seen(num_other_rows + len(candidates) + sum(other.drafts)) < _FEW
        every = _PROBE_EVERY_NEW if is_new and num_other_rows == 0 else _PROBE_EVERY
        if is_better and self._results.is_close(len(candidates)):
            every = min(every, _PROBE_EVERY_CLOSE)
        is_probe = self._num_plans % every == 0 and not self.is_dormant
        return best.drafts if is_better != is_probe else plain.drafts

    def _offers(self, candidates: Sequence[Candidate], num_other_rows: int) -> tuple[_Offer, _Offer]:
        """No drafts at all, and the best offer with some (with a probe in mind: at least one each)."""
        num_rows = num_other_rows + len(candidates)
        plain = _Offer([0] * len(candidates), len(candidates), self._verify.seconds(num_rows))
        chances = sorted(
            (-survival, i, r)
            for r, candidate in enumerate(candidates)
            for i, survival in enumerate(
                self._acceptance.survivals(candidate.request_id, min(candidate.limit, self._num_drafts))
            )
        )
        best: _Offer | None = None
        drafts, num_tokens = list(plain.drafts), plain.num_tokens
        stride = max(1, len(chances) // 32)
        for n, (negative, _, r) in enumerate(chances, 1):
            drafts[r] += 1
            num_tokens -= negative
            if n % stride == 0 or n == len(chances):
                seconds = self._verify.seconds(num_rows + n) + self._drafting(drafts)
                offer = _Offer(list(drafts), num_tokens, seconds)
                if best is None or offer.rate > best.rate:
                    best = offer
        return plain, best or plain

    def _drafting(self, drafts: Sequence[int]) -> float:
        """From the same depth, or the nearest one seen."""
        depth, num_wishes = max(drafts), sum(d > 0 for d in drafts)
        if not self._draft:
            return 0.0
        nearest = min(self._draft, key=lambda seen: (abs(seen - depth), -seen))
        return self._draft[nearest].seconds(num_wishes)
