"""From a drafter's logits to drafts: the request's own rules (grammar, bias, bans, penalties) hold in every slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenmill.core.request import SamplingParams
from tokenmill.engine.sampler import SamplingRow, distribution, draw_draft
from tokenmill.engine.speculative.base import NO_PROPOSAL, DraftWish, Proposal
from tokenmill.engine.structured.base import GrammarLimitError, PackedMask
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar


class DraftPen:
    """Drafts of one sequence, written one after the other.

    is_drawn   probabilistic: drafts are drawn from the drafter's distribution, which is kept for verification
    """

    def __init__(self, wish: DraftWish, *, is_drawn: bool) -> None:
        sampling = wish.request.sampling
        self.wish = wish
        self.token_ids: list[int] = []
        self._is_drawn = is_drawn and sampling.temperature > 0
        self._is_plain = not self._is_drawn and wish.grammar is None and not _shapes_logits(sampling)
        self._probs: list[Tensor] = []
        self._is_stuck = False

    @property
    def is_done(self) -> bool:
        return self._is_stuck or len(self.token_ids) == self.wish.num_drafts

    def write(self, logits: Tensor, best: int) -> None:
        """The next draft from one row of logits [V] float32 (may be changed in place), whose best token is known."""
        if not self._is_plain:
            drawn = self._shaped(logits)
            if drawn is None:
                self._is_stuck = True
                return
            best = drawn
        self.token_ids.append(best)

    def _shaped(self, logits: Tensor) -> int | None:
        """None where the grammar has become too costly to follow: verification says so to the client."""
        try:
            mask = None if self.wish.grammar is None else self._mask(self.wish.grammar)
        except GrammarLimitError:
            return None
        row = SamplingRow(self.wish.request, self.wish.token_ids, mask, drafts=tuple(self.token_ids))
        probs = distribution(logits, row)
        if not self._is_drawn:
            return int(probs.argmax())
        self._probs.append(probs)
        return draw_draft(probs, row)

    def _mask(self, grammar: SequenceGrammar) -> PackedMask | None:
        return grammar.masks_along(self.token_ids)[-1]

    def proposal(self) -> Proposal:
        if not self.token_ids:
            return NO_PROPOSAL
        return Proposal(tuple(self.token_ids), torch.stack(self._probs) if self._probs else None)


def _shapes_logits(sampling: SamplingParams) -> bool:
    """Does anything but a grammar change which token is the best one?"""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or sampling.min_tokens
    )


def write_drafts(pens: Sequence[DraftPen], logits: Tensor) -> None:
    """One draft per pen from its row of logits [R, V] float32."""
    for pen, row, best in zip(pens, logits, logits.argmax(dim=-1).tolist(), strict=True):
        pen.write(row, best)
