"""Rows that decide on drafts, and what follows from the tokens drawn at them. Not responsible for drawing (sampler)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.core.request import Request, TokenLogprob
from tokenmill.engine.sampler import SampledRow, SamplingRow
from tokenmill.engine.sequence import ends_text
from tokenmill.engine.speculative.base import Proposal
from tokenmill.engine.structured.base import GrammarLimitError
from tokenmill.engine.structured.step_masks import SequenceMasks


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tokens to keep, the last of them behind the drafts that stayed; none and an error when the first row failed."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None


def rows_to_verify(
    request: Request, token_ids: Sequence[int], proposal: Proposal, masks: SequenceMasks
) -> list[SamplingRow]:
    """The row behind token_ids, then one behind each draft. Rows without a mask stand behind an illegal draft, which
    never stays, or are free."""
    drafts, probs = proposal.token_ids, proposal.probs
    rows = []
    for i in range(len(drafts) + 1):
        mask = masks[i] if i < len(masks) else None
        is_drawn = probs is not None and i < len(drafts)
        rows.append(
            SamplingRow(
                request,
                token_ids,
                None if isinstance(mask, GrammarLimitError) else mask,
                drafts=drafts[:i],
                draft=drafts[i] if is_drawn else None,
                draft_probs=probs[i] if is_drawn and probs is not None else None,
            )
        )
    return rows


def judge(rows: Sequence[SamplingRow], sampled: Sequence[SampledRow]) -> Verdict:
    """Tokens up to and including the first that is not the draft, or that ends the text."""
    drafts, request = rows[-1].drafts, rows[0].request
    kept: list[SampledRow] = []
    for row, got in zip(rows, sampled, strict=True):
        if got.error is not None:
            break  # behind kept tokens it comes again in the next step, as it would without drafts
        kept.append(got)
        is_draft = len(kept) <= len(drafts) and got.token_id == drafts[len(kept) - 1]
        if not is_draft or ends_text(request, row.position + 1, got.token_id):
            break
    if not kept:
        return Verdict(error=sampled[0].error)
    logprobs = tuple(got.logprob for got in kept if got.logprob is not None)
    return Verdict(tuple(got.token_id for got in kept), logprobs or None)
