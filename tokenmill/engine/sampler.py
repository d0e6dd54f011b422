"""From logits to tokens: one function for every row, whatever kind of step it comes from.

Order: bias and penalties, grammar mask, ban of end tokens before min_tokens, temperature, top_k, top_p, min_p, draw.
A draw is the inverse CDF at a counter-based uniform number, so it depends on (seed, position, choice) and the row's
logits alone. Log-probabilities are of the model's raw distribution.

Verifying a draft is one more such row: the draft stays iff the row's token is the draft. Where the draft was chosen,
the row is drawn as without speculation, so speculation changes no token. Where it was drawn from a known distribution
q, the row is rejection sampling (Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023,
section 2.3): the draft with probability min(1, p / q), else a token of max(0, p - q); the result is distributed as p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokenmill.core.request import Request, TokenLogprob
from tokenmill.engine.rng import Stream, uniform
from tokenmill.engine.structured.apply import apply_mask
from tokenmill.engine.structured.base import PackedMask

#: Candidates looked at before a full sort: nearly every nucleus lies inside them.
_NUM_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits to draw from: the request, its tokens so far, what a grammar allows next.

    drafts       tokens between token_ids and this row that are not certain to stay
    draft        the draft that this row decides on, when it was drawn from `draft_probs`
    draft_probs  [V] float32
    """

    request: Request
    token_ids: Sequence[int]
    mask: PackedMask | None = None
    drafts: tuple[int, ...] = ()
    draft: int | None = None
    draft_probs: Tensor | None = None

    @property
    def position(self) -> int:
        """Index of the output token to draw."""
        return len(self.token_ids) + len(self.drafts) - len(self.request.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return [*self.token_ids[len(self.request.prompt_token_ids) :], *self.drafts]


@dataclass(frozen=True, slots=True)
class SampledRow:
    """`error` is set, and token_id meaningless, when the row's logits are not finite."""

    token_id: int
    logprob: TokenLogprob | None = None
    error: str | None = None


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledRow]:
    """Draw one token per row. logits [R, V] float32 (may be changed in place)."""
    token_ids, is_finite = _best_tokens(logits)
    logprobs = _raw_logprobs(logits, rows)
    changed = [r for r, row in enumerate(rows) if is_finite[r] and _is_adjusted(row)]
    for r in changed:
        _adjust(logits[r], rows[r])
    if changed:
        best, _ = _best_tokens(logits if len(changed) == len(rows) else logits[changed])
        for r, token_id in zip(changed, best, strict=True):
            token_ids[r] = token_id
    random = [r for r, row in enumerate(rows) if row.request.sampling.temperature > 0 and is_finite[r]]
    for r in random:
        token_ids[r] = _draw(logits[r], rows[r])
    return [
        SampledRow(token_ids[r], token_logprob(logprobs[r], token_ids[r], rows[r].request.sampling.logprobs))
        if is_finite[r]
        else SampledRow(0, error="the model produced non-finite logits for this request")
        for r in range(len(rows))
    ]


def _best_tokens(logits: Tensor) -> tuple[list[int], list[bool]]:
    """Index of each row's largest value, the first of equal ones, and whether that value is finite.

    It is not where a value is NaN (found as if it were the largest) or infinite, or where nothing is possible at all.
    One pass over the row; numpy's search is 13 times torch's on a CPU.
    """
    if logits.device.type == "cpu":
        values = logits.numpy()
        best = values.argmax(axis=-1)
        return best.tolist(), np.isfinite(values[np.arange(len(best)), best]).tolist()
    tops, ids = logits.max(dim=-1)
    return ids.tolist(), torch.isfinite(tops).tolist()


def _raw_logprobs(logits: Tensor, rows: Sequence[SamplingRow]) -> list[Tensor | None]:
    """Per row log_softmax [V] where asked for; made before the logits are changed."""
    return [
        torch.log_softmax(logits[r], dim=-1) if row.request.sampling.logprobs is not None else None
        for r, row in enumerate(rows)
    ]


def token_logprob(logprobs: Tensor | None, token_id: int, num_top: int | None) -> TokenLogprob | None:
    """Log-probability of `token_id` with the `num_top` best alternatives; None when `logprobs` is."""
    if logprobs is None or num_top is None:
        return None
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = logprobs.topk(num_top)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def _is_adjusted(row: SamplingRow) -> bool:
    """Does `_adjust` change anything?"""
    sampling = row.request.sampling
    return (
        row.mask is not None
        or bool(sampling.logit_bias)
        or sampling.repetition_penalty != 1.0
        or bool(sampling.presence_penalty or sampling.frequency_penalty)
        or row.position < sampling.min_tokens
    )


def _adjust(logits: Tensor, row: SamplingRow) -> None:
    """Bias, penalties, mask and the min_tokens ban, in place on one row [V]."""
    sampling = row.request.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.token_ids, *row.drafts}))
        values = logits[seen]
        logits[seen] = torch.where(
            values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
        )
    if sampling.presence_penalty or sampling.frequency_penalty:
        output = torch.tensor(row.output_token_ids, dtype=torch.long)
        ids, counts = output.unique(return_counts=True)
        logits[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts.float()
    for token_id, bias in sampling.logit_bias.items():
        logits[token_id] += bias
    if row.mask is not None:
        apply_mask(logits, row.mask)
    if row.position < sampling.min_tokens:
        _ban_ends(logits, row)


def _ban_ends(logits: Tensor, row: SamplingRow) -> None:
    """Not where an end is all that a grammar has left: it counts more than min_tokens."""
    sampling = row.request.sampling
    ends = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else row.request.eos_token_ids)]
    before = logits[ends]
    logits[ends] = -torch.inf
    if row.mask is not None and torch.isneginf(logits).all():
        logits[ends] = before


def _draw(logits: Tensor, row: SamplingRow) -> int:
    """One token from one adjusted row [V]: the inverse CDF, or rejection sampling against a drawn draft."""
    request, (ids, probs) = row.request, _truncated(logits, row)
    u = uniform(request.seed, row.position, request.choice_index)
    if row.draft is None or row.draft_probs is None:
        return _inverse_cdf(ids, probs, u)
    target = probs if ids is None else torch.zeros_like(logits).index_put_((ids,), probs)
    target = target / target.sum()
    accept = uniform(request.seed, row.position, request.choice_index, Stream.ACCEPT)
    if accept * float(row.draft_probs[row.draft]) < float(target[row.draft]):
        return row.draft
    rest = (target - row.draft_probs).clamp(min=0)
    rest[row.draft] = 0
    return _inverse_cdf(None, rest if rest.sum() > 0 else target, u)


def distribution(logits: Tensor, row: SamplingRow) -> Tensor:
    """[V] float32 probabilities that a draft at this row is drawn from: those that the target's row would use.

    logits [V] of a draft, changed in place. Temperature 0: all on the best token.
    """
    _adjust(logits, row)
    if row.request.sampling.temperature == 0:
        return torch.zeros_like(logits).index_fill_(0, logits.argmax(), 1.0)
    ids, probs = _truncated(logits, row)
    full = probs if ids is None else torch.zeros_like(logits).index_put_((ids,), probs)
    return full / full.sum()


def draw_draft(probs: Tensor, row: SamplingRow) -> int:
    """A draft from its distribution [V]; its random number is independent of those that decide on it."""
    request = row.request
    return _inverse_cdf(None, probs, uniform(request.seed, row.position, request.choice_index, Stream.DRAFT))


def _truncated(logits: Tensor, row: SamplingRow) -> tuple[Tensor | None, Tensor]:
    """(ids or None for all, probabilities up to a factor) of one adjusted row, after temperature and truncation."""
    sampling = row.request.sampling
    scaled = logits / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        ids, probs = _nucleus(scaled, sampling.top_k, sampling.top_p)
    else:
        ids, probs = None, torch.softmax(scaled, dim=-1)
    if sampling.min_p:
        probs = torch.where(probs >= sampling.min_p * probs.max(), probs, 0.0)
    return ids, probs


def _inverse_cdf(ids: Tensor | None, probs: Tensor, u: float) -> int:
    cdf = probs.double().cumsum(dim=-1)
    index = int(torch.searchsorted(cdf, u * cdf[-1], right=True))
    if index == len(cdf):  # u * total rounded up to the total: take the last token of the support
        index = int(probs.nonzero()[-1])
    return index if ids is None else int(ids[index])


def _nucleus(scaled: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Token ids and probabilities of the top_k best, then of the smallest set holding top_p, best first.

    Ties go to the lower token id, so that a row's nucleus never depends on a sort's mood.
    """
    vocab_size = scaled.shape[-1]
    log_total = torch.logsumexp(scaled, dim=-1)
    num = min(top_k or vocab_size, vocab_size)
    for size in (_NUM_CANDIDATES, vocab_size):
        ids = _best(scaled, min(size, num))
        probs = torch.exp(scaled[ids] - log_total)
        if top_k:
            probs = probs / probs.sum() if len(ids) == num else probs
        mass = probs.double().cumsum(dim=-1)
        if len(ids) == num or mass[-1] >= top_p:
            break
    keep = mass - probs < top_p  # the token that crosses top_p is kept
    keep[0] = True
    return ids[keep], probs[keep]


def _best(scaled: Tensor, num: int) -> Tensor:
    """Ids of the `num` largest, best first, ties to the lower id."""
    if num == scaled.shape[-1]:
        return torch.sort(scaled, descending=True, stable=True).indices
    threshold = scaled.topk(num).values[-1]
    ids = (scaled >= threshold).nonzero().flatten()  # ascending ids; more than `num` only on ties
    return ids[torch.sort(scaled[ids], descending=True, stable=True).indices][:num]
