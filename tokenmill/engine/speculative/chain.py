"""Method `auto`: n-grams where the text repeats itself, a drafter elsewhere; per request, by what has stayed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.engine.speculative.base import DraftWish, ObservedStep, Proposal, Proposer
from tokenmill.engine.speculative.config import DEFAULT_DRAFTS
from tokenmill.models.base import Caches

#: Weight of the newest verification in a request's mean of drafts that stayed.
_NEWEST = 0.3
#: Before an n-gram of a request was ever verified, so many of its drafts are expected to stay.
_NGRAM_PRIOR = 2.0
#: Each time they are passed over, their mean goes back towards that by so much.
_RECOVERY = 0.03


class ChainProposer:
    """See base.Proposer. Owns the choice between two proposers; caches and features are those of the drafter."""

    name = "auto"

    def __init__(self, ngram: Proposer, drafter: Proposer) -> None:
        self._ngram, self._drafter = ngram, drafter
        self._most_drafted = DEFAULT_DRAFTS.get(drafter.name)  # n-grams cost nothing to guess longer
        self.features = drafter.features
        self._kept: dict[str, dict[str, float]] = {}
        self._used: dict[str, str] = {}

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        return self._drafter.cache_groups(block_size)

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches:
        return self._drafter.allocate_caches(num_blocks, block_size)

    def bind(self, target: Caches, own: Caches) -> None:
        self._drafter.bind(target, own)

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        proposals = self._ngram.propose(wishes)
        others = [i for i, wish in enumerate(wishes) if not self._prefers_ngram(wish.request_id, proposals[i])]
        if others:
            drafted = self._drafter.propose([self._limited(wishes[i]) for i in others])
            for i, proposal in zip(others, drafted, strict=True):
                if proposal.token_ids:
                    proposals[i] = proposal
                    self._used[wishes[i].request_id] = self._drafter.name
        return proposals

    def _limited(self, wish: DraftWish) -> DraftWish:
        if self._most_drafted is None or wish.num_drafts <= self._most_drafted:
            return wish
        return replace(wish, num_drafts=self._most_drafted)

    def _prefers_ngram(self, request_id: str, proposal: Proposal) -> bool:
        self._used[request_id] = self._ngram.name
        if not proposal.token_ids:
            return False
        kept = self._kept.get(request_id, {})
        ngram = kept.get(self._ngram.name, _NGRAM_PRIOR)
        if min(ngram, len(proposal.token_ids)) >= kept.get(self._drafter.name, 0.0):
            return True
        kept[self._ngram.name] = ngram + _RECOVERY * (_NGRAM_PRIOR - ngram)  # a text may begin to repeat itself
        return False

    def observe(self, step: ObservedStep) -> None:
        for seen in step.sequences:
            method = self._used.pop(seen.request_id, None)
            if method is not None:
                kept = self._kept.setdefault(seen.request_id, {})
                newest = seen.num_kept - 1
                kept[method] = (1 - _NEWEST) * kept.get(method, newest) + _NEWEST * newest
        self._ngram.observe(step)
        self._drafter.observe(step)

    def lapse(self, request_id: str) -> None:
        self._ngram.lapse(request_id)
        self._drafter.lapse(request_id)

    def rows_from(self, request_id: str) -> int | None:
        return self._drafter.rows_from(request_id)

    def forget(self, request_id: str) -> None:
        self._ngram.forget(request_id)
        self._drafter.forget(request_id)
        self._kept.pop(request_id, None)
        self._used.pop(request_id, None)
