"""The runner over a torch model: builds the ragged batch, runs it, draws the tokens.

Owner of token values, cache tensors and collected prompt log-probabilities. Decides nothing: which drafts are worth
verifying is planned, what they are a proposer's business (engine/speculative/speculator).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from tokenmill.core.request import Request, TokenLogprob
from tokenmill.core.step import SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.sampler import sample, token_logprob
from tokenmill.engine.speculative.base import NO_PROPOSAL, Proposal
from tokenmill.engine.speculative.speculator import Speculator
from tokenmill.engine.speculative.verify import Verdict, judge, rows_to_verify
from tokenmill.engine.structured.base import GrammarLimitError
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.engine.structured.step_masks import MaskBuilder, PendingMasks, SequenceMasks, too_costly
from tokenmill.models.base import Caches, Model, ShowingModel
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.ragged import group_table

#: Rows of prompt logits made at once: bounds the memory of [rows, V] float32.
_PROMPT_LOGIT_ROWS = 64


@dataclass(slots=True)
class _RunState:
    request: Request
    token_ids: list[int]
    grammar: SequenceGrammar | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


class TorchRunner:
    """
    caches      of the model
    speculator  what proposes drafts, with caches of its own; None: nothing does
    """

    def __init__(self, model: Model, caches: Caches, block_size: int, speculator: Speculator | None = None) -> None:
        self._model = model
        self._caches = caches
        self._block_size = block_size
        self._speculator = speculator
        self._showing = model if isinstance(model, ShowingModel) else None
        self._tables = [*caches] if speculator is None else [*caches, *speculator.caches]
        self._states: dict[str, _RunState] = {}
        self.masks = MaskBuilder()

    def add(self, request: Request, grammar: SequenceGrammar | None = None) -> None:
        assert request.request_id not in self._states, f"duplicate {request.request_id}"
        token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self._states[request.request_id] = _RunState(request, token_ids, grammar)

    def remove(self, request_id: str) -> None:
        del self._states[request_id]
        if self._speculator is not None:
            self._speculator.forget(request_id)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        if self._speculator is None or not plan.keeps_drafts:
            if self._speculator is not None:
                self._speculator.lapse(plan)
            return StepResult(self._run(plan, [NO_PROPOSAL] * len(plan.sequences)))
        drafted, proposals = self._speculator.propose(plan, self._states)
        return self._speculator.observe(drafted, self._run(drafted, proposals), self._states)

    def _run(self, plan: StepPlan, proposals: Sequence[Proposal]) -> tuple[SequenceResult, ...]:
        sampling = [b for b, planned in enumerate(plan.sequences) if planned.is_sampling]
        masks = self.masks.start(
            [self._states[plan.sequences[b].request_id].grammar for b in sampling],
            [proposals[b].token_ids for b in sampling],
        )
        batch = self._build_batch(plan, proposals)
        hidden = self._forward(batch, is_shown=plan.keeps_drafts)
        for planned, start in zip(plan.sequences, batch.cu_seqlens, strict=False):
            if self._states[planned.request_id].request.sampling.prompt_logprobs is not None:
                self._collect_prompt_logprobs(planned, hidden[start : start + planned.num_scheduled_tokens])
        drawn = dict(zip(sampling, self._draw(plan, proposals, batch, hidden, sampling, masks), strict=True))
        results = tuple(drawn.get(b) or _no_tokens(planned) for b, planned in enumerate(plan.sequences))
        self._model.commit(batch, self._caches, [got.num_accepted_tokens for got in results])
        return results

    def _forward(self, batch: ForwardBatch, *, is_shown: bool) -> Tensor:
        if self._speculator is None or not is_shown:
            return self._model.forward(batch, self._caches)
        seen = None
        if self._speculator.features is None:
            hidden = self._model.forward(batch, self._caches)
        else:
            assert self._showing is not None, f"{type(self._model).__name__} shows no features"
            hidden, seen = self._showing.forward_with_features(batch, self._caches, self._speculator.features)
        self._speculator.see(batch, seen)
        return hidden

    def _build_batch(self, plan: StepPlan, proposals: Sequence[Proposal] = ()) -> ForwardBatch:
        token_ids: list[int] = []
        positions: list[int] = []
        cu_seqlens = [0]
        for b, planned in enumerate(plan.sequences):
            drafts = proposals[b].token_ids if proposals else ()
            start = planned.num_computed_tokens
            end = start + planned.num_scheduled_tokens
            known = self._states[planned.request_id].token_ids
            assert end <= len(known) + len(drafts), f"{planned.request_id}: {end} of {len(known)} tokens"
            token_ids.extend(known[start:end])
            token_ids.extend(drafts)
            positions.extend(range(start, end))
            cu_seqlens.append(len(token_ids))
        return ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            cu_seqlens=tuple(cu_seqlens),
            context_lens=tuple(s.num_computed_tokens for s in plan.sequences),
            draft_lens=tuple(s.num_draft_tokens for s in plan.sequences),
            block_size=self._block_size,
            protected_lens=tuple(s.num_protected_tokens for s in plan.sequences),
            tables={name: group_table([s.block_tables[name] for s in plan.sequences]) for name in self._tables},
        )

    def _draw(
        self,
        plan: StepPlan,
        proposals: Sequence[Proposal],
        batch: ForwardBatch,
        hidden: Tensor,
        sampling: Sequence[int],
        pending: PendingMasks,
    ) -> list[SequenceResult]:
        """One draw per row that ends a sequence or a draft's prefix, all in one call of the sampler."""
        if not sampling:
            return []
        ends = [(batch.cu_seqlens[b + 1] - len(proposals[b].token_ids) - 1, batch.cu_seqlens[b + 1]) for b in sampling]
        drawn_from = [row for first, end in ends for row in range(first, end)]
        if len(drawn_from) < len(hidden):  # else all of them, in order
            hidden = hidden.index_select(0, torch.tensor(drawn_from, device=hidden.device))
        logits = self._model.compute_logits(hidden)
        masks = pending.take()
        states = [self._states[plan.sequences[b].request_id] for b in sampling]
        rows = [
            rows_to_verify(state.request, state.token_ids, proposals[b], row_masks)
            for b, state, row_masks in zip(sampling, states, masks, strict=True)
        ]
        sampled = iter(sample(logits, [row for verifying in rows for row in verifying]))
        return [
            _result(plan.sequences[b], state, judge(verifying, list(islice(sampled, len(verifying)))), row_masks)
            for b, state, verifying, row_masks in zip(sampling, states, rows, masks, strict=True)
        ]

    def _collect_prompt_logprobs(self, planned: SequencePlan, hidden: Tensor) -> None:
        """Row at position i gives the log-probability of prompt token i + 1; a recomputed row changes nothing."""
        state = self._states[planned.request_id]
        prompt, num_top = state.request.prompt_token_ids, state.request.sampling.prompt_logprobs
        if num_top is None or len(state.token_ids) > len(prompt):
            return
        start = planned.num_computed_tokens
        if start == 0:
            state.prompt_logprobs.clear()  # first chunk, or a restart after preemption
        end = min(start + len(hidden), len(prompt) - 1)
        for first in range(start, end, _PROMPT_LOGIT_ROWS):
            last = min(first + _PROMPT_LOGIT_ROWS, end)
            logprobs = torch.log_softmax(self._model.compute_logits(hidden[first - start : last - start]), dim=-1)
            for i in range(first, last):
                entry = token_logprob(logprobs[i - first], prompt[i + 1], num_top)
                assert entry is not None
                state.prompt_logprobs.append(entry)

    def memory_report(self) -> dict[str, int]:
        caches = self._caches if self._speculator is None else self._caches | self._speculator.caches
        return {name: sum(t.nbytes for t in tensors) for name, tensors in caches.items()}


def _result(planned: SequencePlan, state: _RunState, verdict: Verdict, masks: SequenceMasks) -> SequenceResult:
    """Keeps the drawn tokens, unless the first row has failed."""
    num_certain = planned.num_scheduled_tokens - planned.num_draft_tokens
    if masks and isinstance(masks[0], GrammarLimitError):
        return replace(
            too_costly(planned, masks[0]), num_accepted_tokens=num_certain, num_draft_tokens=planned.num_draft_tokens
        )
    if verdict.error is not None:
        return SequenceResult(
            planned.request_id, (), num_certain, error=verdict.error, num_draft_tokens=planned.num_draft_tokens
        )
    is_first = len(state.token_ids) == len(state.request.prompt_token_ids)
    state.token_ids.extend(verdict.token_ids)
    return SequenceResult(
        planned.request_id,
        verdict.token_ids,
        num_certain + len(verdict.token_ids) - 1,
        logprobs=verdict.logprobs,
        prompt_logprobs=_take_prompt_logprobs(state) if is_first else None,
        num_draft_tokens=planned.num_draft_tokens,
    )


def _no_tokens(planned: SequencePlan) -> SequenceResult:
    return SequenceResult(planned.request_id, (), planned.num_scheduled_tokens)


def _take_prompt_logprobs(state: _RunState) -> tuple[TokenLogprob, ...] | None:
    """Once, with the first output token."""
    return None if state.request.sampling.prompt_logprobs is None else tuple(state.prompt_logprobs)
