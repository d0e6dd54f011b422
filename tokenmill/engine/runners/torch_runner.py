"""The runner over a torch model: builds the ragged batch, runs it, draws the tokens.

Owner of token values, cache tensors and collected prompt log-probabilities. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tokenmill.core.request import Request, TokenLogprob
from tokenmill.core.step import BlockTable, SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.sampler import SampledRow, SamplingRow, sample, token_logprob
from tokenmill.engine.structured.base import GrammarLimitError
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.engine.structured.step_masks import MaskBuilder, PendingMasks, RowMask, too_costly
from tokenmill.models.base import Caches, Model
from tokenmill.models.batch import ForwardBatch, GroupTable

#: Rows of prompt logits made at once: bounds the memory of [rows, V] float32.
_PROMPT_LOGIT_ROWS = 64


@dataclass(slots=True)
class _RunState:
    request: Request
    token_ids: list[int]
    grammar: SequenceGrammar | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


class TorchRunner:
    def __init__(self, model: Model, caches: Caches, block_size: int) -> None:
        self._model = model
        self._caches = caches
        self._block_size = block_size
        self._states: dict[str, _RunState] = {}
        self.masks = MaskBuilder()

    def add(self, request: Request, grammar: SequenceGrammar | None = None) -> None:
        assert request.request_id not in self._states, f"duplicate {request.request_id}"
        self._states[request.request_id] = _RunState(request, list(request.prompt_token_ids), grammar)

    def remove(self, request_id: str) -> None:
        del self._states[request_id]

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        sampling = [b for b, planned in enumerate(plan.sequences) if planned.is_sampling]
        masks = self.masks.start([self._states[plan.sequences[b].request_id].grammar for b in sampling])
        batch = self._build_batch(plan)
        hidden = self._model.forward(batch, self._caches)
        self._model.commit(batch, self._caches, [s.num_scheduled_tokens for s in plan.sequences])
        for planned, start in zip(plan.sequences, batch.cu_seqlens, strict=False):
            self._collect_prompt_logprobs(planned, hidden[start : start + planned.num_scheduled_tokens])
        drawn = dict(zip(sampling, self._draw(plan, batch, hidden, sampling, masks), strict=True))
        return StepResult(tuple(drawn.get(b) or _no_tokens(planned) for b, planned in enumerate(plan.sequences)))

    def _build_batch(self, plan: StepPlan) -> ForwardBatch:
        token_ids: list[int] = []
        positions: list[int] = []
        cu_seqlens = [0]
        for planned in plan.sequences:
            start = planned.num_computed_tokens
            end = start + planned.num_scheduled_tokens
            known = self._states[planned.request_id].token_ids
            assert end <= len(known), f"{planned.request_id}: planned to {end} of {len(known)} tokens"
            token_ids.extend(known[start:end])
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
            tables={name: _group_table([s.block_tables[name] for s in plan.sequences]) for name in self._caches},
        )

    def _draw(
        self, plan: StepPlan, batch: ForwardBatch, hidden: Tensor, sampling: Sequence[int], pending: PendingMasks
    ) -> list[SequenceResult]:
        if not sampling:
            return []
        last_rows = torch.tensor([batch.cu_seqlens[b + 1] - 1 for b in sampling])
        logits = self._model.compute_logits(hidden[last_rows])
        states = [self._states[plan.sequences[b].request_id] for b in sampling]
        masks = pending.take()
        rows = [
            SamplingRow(s.request, s.token_ids, None if isinstance(mask, GrammarLimitError) else mask)
            for s, mask in zip(states, masks, strict=True)
        ]
        return [
            _result(plan.sequences[b], state, row, mask)
            for b, state, row, mask in zip(sampling, states, sample(logits, rows), masks, strict=True)
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
        return {name: sum(t.nbytes for t in tensors) for name, tensors in self._caches.items()}


def _result(planned: SequencePlan, state: _RunState, row: SampledRow, mask: RowMask) -> SequenceResult:
    """Keeps the drawn token, unless the row has failed."""
    if isinstance(mask, GrammarLimitError):
        return too_costly(planned, mask)
    if row.error is not None:
        return SequenceResult(planned.request_id, (), planned.num_scheduled_tokens, error=row.error)
    state.token_ids.append(row.token_id)
    return SequenceResult(
        planned.request_id,
        (row.token_id,),
        planned.num_scheduled_tokens,
        logprobs=None if row.logprob is None else (row.logprob,),
        prompt_logprobs=_take_prompt_logprobs(state),
    )


def _no_tokens(planned: SequencePlan) -> SequenceResult:
    return SequenceResult(planned.request_id, (), planned.num_scheduled_tokens)


def _take_prompt_logprobs(state: _RunState) -> tuple[TokenLogprob, ...] | None:
    """Once, with the first output token."""
    is_first = len(state.token_ids) == len(state.request.prompt_token_ids) + 1
    if state.request.sampling.prompt_logprobs is None or not is_first:
        return None
    return tuple(state.prompt_logprobs)


def _group_table(tables: Sequence[BlockTable]) -> GroupTable:
    width = max(len(t.block_ids) for t in tables)
    block_ids = np.zeros((len(tables), width), dtype=np.int64)
    for b, table in enumerate(tables):
        block_ids[b, : len(table.block_ids)] = table.block_ids
    first_block = torch.tensor([t.first_block for t in tables])
    return GroupTable(torch.from_numpy(block_ids), first_block)
