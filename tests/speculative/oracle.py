"""A proposer that knows the text: right for as long as it is told to be, then wrong. Found as a plug-in would be."""

from __future__ import annotations

from tokenmill.engine.speculative.base import PROPOSERS, Proposal
from tokenmill.engine.speculative.ngram import NgramProposer

#: prompt -> output without speculation; how many drafts are right before the first wrong one, by output position.
TRUTH: dict[tuple[int, ...], list[int]] = {}
NUM_RIGHT = [99]
VOCAB = [256]


class Oracle(NgramProposer):
    name = "oracle"

    def propose(self, wishes):
        return [self._of(wish) for wish in wishes]

    def _of(self, wish):
        prompt = wish.request.prompt_token_ids
        truth, done = TRUTH[tuple(prompt)], len(wish.token_ids) - len(prompt)
        right = NUM_RIGHT[done % len(NUM_RIGHT)]
        tail = truth[done : done + wish.num_drafts] + [0] * wish.num_drafts
        return Proposal(tuple(t if i < right else (t + 1) % VOCAB[0] for i, t in enumerate(tail[: wish.num_drafts])))


def build(context):
    return Oracle()


PROPOSERS._builtins["oracle"] = f"{__name__}:build"
