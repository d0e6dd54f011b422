"""What a step-time model needs to know of a step, and what it answers. Not responsible for: any model of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tokenmill.core.step import StepPlan


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sums over a step's sequences; a sequence of one row (and its drafts) is a decode, a longer one a prefill chunk.

    Counts are whole in a real step; means of many steps have fractions.

    num_prefill_tokens    rows of prompt chunks
    num_prefill_seqs      chunks
    prefill_context_sum   sum over their rows of the tokens each row sees, itself included
    num_decode_seqs       sequences that decode
    decode_context_sum    sum over them of the tokens before their row
    num_draft_tokens      drafts verified, all decodes together
    num_sampled           rows that draw a token
    """

    num_prefill_tokens: float = 0
    num_prefill_seqs: float = 0
    prefill_context_sum: float = 0.0
    num_decode_seqs: float = 0
    decode_context_sum: float = 0.0
    num_draft_tokens: float = 0
    num_sampled: float = 0

    @property
    def num_tokens(self) -> float:
        return self.num_prefill_tokens + self.num_decode_seqs + self.num_draft_tokens

    @classmethod
    def of_plan(cls, plan: StepPlan) -> StepShape:
        prefill_tokens = prefill_seqs = pairs = decodes = contexts = drafts = sampled = 0
        for planned in plan.sequences:
            num, context = planned.num_scheduled_tokens, planned.num_computed_tokens
            sampled += planned.is_sampling
            if num - planned.num_draft_tokens == 1:
                decodes += 1
                contexts += context
                drafts += planned.num_draft_tokens
            else:
                prefill_tokens += num
                prefill_seqs += 1
                pairs += num * context + num * (num + 1) // 2
        return cls(prefill_tokens, prefill_seqs, pairs, decodes, contexts, drafts, sampled)

    @classmethod
    def prefill(cls, num_tokens: int, context: int = 0, *, num_seqs: int = 1, is_last: bool = True) -> StepShape:
        """`num_seqs` equal chunks of `num_tokens` tokens behind `context` tokens each."""
        pairs = num_tokens * context + num_tokens * (num_tokens + 1) / 2
        return cls(num_tokens * num_seqs, num_seqs, pairs * num_seqs, num_sampled=num_seqs if is_last else 0)

    @classmethod
    def decode(cls, num_seqs: float, context_sum: float, num_draft_tokens: float = 0) -> StepShape:
        return cls(
            num_decode_seqs=num_seqs,
            decode_context_sum=context_sum,
            num_draft_tokens=num_draft_tokens,
            num_sampled=num_seqs,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds with the range the truth is expected in (four times of five), and what they are made of."""

    seconds: float
    low: float
    high: float
    parts: Mapping[str, float] = field(default_factory=dict)


class StepTime(Protocol):
    """Modelled seconds of a step of one worker. Pure: same shape, same answer."""

    def step_s(self, shape: StepShape) -> float:
        """Just the seconds; a handful of float operations."""
        ...

    def seconds(self, shape: StepShape) -> Prediction:
        """With range and parts, for people."""
        ...

    def decode_seconds(self, batch: int, context_sum: float, num_steps: int = 1, num_draft_tokens: int = 0) -> float:
        """`num_steps` decode steps of the same `batch` sequences, of `context_sum` tokens at the first of them.

        Contexts grow by a token per sequence and step; drafts are those of one step. One evaluation, however many
        steps: the time skipping of the twin. Differs from single steps by under 1 %.
        """
        ...
