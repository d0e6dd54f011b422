"""Between runner and proposer: what to propose for a plan, what to show of a finished step, and the time it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from tokenmill.core.request import Request
from tokenmill.core.step import SequencePlan, SequenceResult, StepPlan, StepResult
from tokenmill.engine.sequence import ends_text
from tokenmill.engine.speculative.base import (
    NO_PROPOSAL,
    DraftWish,
    ObservedSequence,
    ObservedStep,
    Proposal,
    Proposer,
)
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.features import Features


class RunState(Protocol):
    """What the runner knows of a sequence."""

    @property
    def request(self) -> Request: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def grammar(self) -> SequenceGrammar | None: ...


class Speculator:
    """
    caches  of the proposer
    now     seconds of a monotonic clock
    """

    def __init__(self, proposer: Proposer, caches: Caches, now: Callable[[], float]) -> None:
        self.proposer = proposer
        self.caches = caches
        self._now = now
        self._draft_s = 0.0
        self._batch: ForwardBatch | None = None
        self._seen: Tensor | None = None

    @property
    def features(self) -> Features | None:
        return self.proposer.features

    def propose(self, plan: StepPlan, states: Mapping[str, RunState]) -> tuple[StepPlan, list[Proposal]]:
        """The plan with as many drafts as were really found, and those drafts, in its order."""
        start_s, self._draft_s = self._now(), 0.0
        wishing = [b for b, planned in enumerate(plan.sequences) if planned.num_draft_tokens]
        proposals = [NO_PROPOSAL] * len(plan.sequences)
        if wishing:
            wishes = [_wish(plan.sequences[b], states) for b in wishing]
            for b, wish, proposal in zip(wishing, wishes, self.proposer.propose(wishes), strict=True):
                proposals[b] = _cut(wish, proposal)
            plan = replace(plan, sequences=tuple(map(_with_drafts, plan.sequences, proposals)))
        self._draft_s += self._now() - start_s
        return plan, proposals

    def lapse(self, plan: StepPlan) -> None:
        """This step will neither propose nor show anything."""
        for planned in plan.sequences:
            self.proposer.lapse(planned.request_id)

    def see(self, batch: ForwardBatch, features: Tensor | None) -> None:
        """The target has computed this batch."""
        self._batch, self._seen = batch, features

    def observe(self, plan: StepPlan, results: Sequence[SequenceResult], states: Mapping[str, RunState]) -> StepResult:
        """Show the finished step to the proposer; the results with what its caches hold now."""
        start_s, batch = self._now(), self._batch
        assert batch is not None, "observe follows a forward pass"
        observed = [
            ObservedSequence(
                request=states[planned.request_id].request,
                token_ids=states[planned.request_id].token_ids,
                num_computed_tokens=planned.num_computed_tokens,
                num_kept=got.num_accepted_tokens,
                first_row=batch.cu_seqlens[b],
                block_tables=planned.block_tables,
            )
            for b, (planned, got) in enumerate(zip(plan.sequences, results, strict=True))
            if got.error is None
        ]
        self.proposer.observe(ObservedStep(batch, observed, self._seen))
        self._batch = self._seen = None
        told = tuple(self._with_rows(got) for got in results)
        self._draft_s += self._now() - start_s
        return StepResult(told, self._draft_s)

    def _with_rows(self, got: SequenceResult) -> SequenceResult:
        rows_from = self.proposer.rows_from(got.request_id)
        return got if rows_from is None else replace(got, draft_rows_from=rows_from)

    def forget(self, request_id: str) -> None:
        self.proposer.forget(request_id)


def _wish(planned: SequencePlan, states: Mapping[str, RunState]) -> DraftWish:
    state = states[planned.request_id]
    assert planned.num_computed_tokens == len(state.token_ids) - 1, f"{planned.request_id}: drafts behind known tokens"
    return DraftWish(state.request, state.token_ids, planned.num_draft_tokens, planned.block_tables, state.grammar)


def _with_drafts(planned: SequencePlan, proposal: Proposal) -> SequencePlan:
    num_drafts = len(proposal.token_ids)
    return replace(
        planned,
        num_scheduled_tokens=planned.num_scheduled_tokens - planned.num_draft_tokens + num_drafts,
        num_draft_tokens=num_drafts,
    )


def _cut(wish: DraftWish, proposal: Proposal) -> Proposal:
    """Nothing behind a draft that would end the text, and no more than was wished for."""
    num_output = len(wish.token_ids) - len(wish.request.prompt_token_ids)
    length = min(len(proposal.token_ids), wish.num_drafts)
    for i in range(length):
        if ends_text(wish.request, num_output + i + 1, proposal.token_ids[i]):
            length = i + 1
            break
    probs = None if proposal.probs is None else proposal.probs[:length]
    return Proposal(proposal.token_ids[:length], probs)
