"""How many drafts each decoding sequence gets in the next step. Pure: no clock, no torch.

The seam between the scheduler, which plans with counts, and the policies (FixedDepth here, priced in pricing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenmill.core.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decoding sequence, and the most drafts that could be of use to it."""

    request_id: str
    limit: int


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a finished step did and took.

    num_rows         rows the target computed, drafts included
    num_decoding     sequences that were decoding; num_other_rows: rows of prompts
    num_wishes       sequences that drafts were wanted for
    depth            most drafts wanted for one of them
    is_kept          the proposer's caches were kept up to date
    verify_s, draft_s  seconds of everything but drafting, and of drafting
    """

    num_rows: int
    num_decoding: int
    num_other_rows: int
    num_wishes: int
    depth: int
    is_kept: bool
    verify_s: float
    draft_s: float

    @classmethod
    def of(cls, plan: StepPlan, result: StepResult, seconds: float) -> StepCost:
        decoding = [s.is_sampling and s.num_scheduled_tokens - s.num_draft_tokens == 1 for s in plan.sequences]
        rows = [got.num_rows for got in result.sequences]
        return cls(
            num_rows=sum(rows),
            num_decoding=sum(decoding),
            num_other_rows=sum(n for n, is_decoding in zip(rows, decoding, strict=True) if not is_decoding),
            num_wishes=sum(s.num_draft_tokens > 0 for s in plan.sequences),
            depth=max((s.num_draft_tokens for s in plan.sequences), default=0),
            is_kept=plan.keeps_drafts,
            verify_s=seconds - result.draft_s,
            draft_s=result.draft_s,
        )


class DepthPolicy(Protocol):
    """Its only writer is the scheduler.

    is_dormant  nothing is planned for a while: proposers may let their caches lapse
    """

    @property
    def is_dormant(self) -> bool: ...

    def plan(self, candidates: Sequence[Candidate], num_other_rows: int) -> list[int]:
        """Drafts per candidate, 0 .. its limit, for a step with `num_other_rows` more rows."""
        ...

    def record(self, request_id: str, num_drafted: int, num_accepted: int) -> None:
        """A sequence that drafts were planned for got so many (the proposer may have found fewer, or none)."""
        ...

    def record_step(self, cost: StepCost) -> None: ...

    def forget(self, request_id: str) -> None:
        """Unknown ids are fine."""
        ...


class FixedDepth:
    """Always as many as asked for: `adaptive: false`."""

    is_dormant = False

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts

    def plan(self, candidates: Sequence[Candidate], num_other_rows: int) -> list[int]:
        return [min(self._num_drafts, candidate.limit) for candidate in candidates]

    def record(self, request_id: str, num_drafted: int, num_accepted: int) -> None:
        pass

    def record_step(self, cost: StepCost) -> None:
        pass

    def forget(self, request_id: str) -> None:
        pass
