"""What one engine step does and what came of it: the frozen types between scheduler and runner.

The scheduler plans with *counts* of tokens; the runner owns the values. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.request import TokenLogprob


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Where one sequence's rows of one cache group live.

    Logical block i of the sequence is `block_ids[i - first_block]`; blocks before `first_block` are freed
    (window groups). The tuple covers every position the step reads or writes.
    """

    first_block: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One sequence's part of a step: positions [num_computed_tokens, + num_scheduled_tokens).

    num_draft_tokens   how many of the scheduled tokens are drafts whose fate `commit` decides (the last ones); a
                       runner that finds fewer drafts runs fewer rows and says so in the result
    is_sampling        the last row without drafts is the end of the sequence: draw the next token from it, and one
                       more behind each draft that stays
    block_tables       by cache group name
    num_protected_tokens  rows below this position exist (shared) in the groups without a window and must not be
                          written: the tokens are computed again only to rebuild window groups
    """

    request_id: str
    num_computed_tokens: int
    num_scheduled_tokens: int
    is_sampling: bool
    block_tables: dict[str, BlockTable]
    num_draft_tokens: int = 0
    num_protected_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """keeps_drafts   False: drafts are not worth their price for now, and neither are their caches"""

    step_id: int
    sequences: tuple[SequencePlan, ...]
    keeps_drafts: bool = True

    @property
    def num_tokens(self) -> int:
        return sum(s.num_scheduled_tokens for s in self.sequences)


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """Tokens drawn for one sequence (empty while its prompt is not finished).

    num_accepted_tokens   of the scheduled tokens, how many stay (all, unless drafts were rejected)
    num_draft_tokens      drafts that were verified, at most what was planned
    draft_rows_from       rows of draft cache groups exist from this position on, a multiple of the block size; None:
                          there are none that a later request could use
    error                 the row cannot be sampled (non-finite logits); the request ends, the others go on
    error_code            of core/errors
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    num_accepted_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    error_code: str = "internal_error"
    num_draft_tokens: int = 0
    draft_rows_from: int | None = None

    @property
    def num_accepted_drafts(self) -> int:
        return max(0, self.num_accepted_tokens - 1) if self.num_draft_tokens else 0

    @property
    def num_rejected_tokens(self) -> int:
        """Draft rows that were computed for nothing."""
        return self.num_draft_tokens - self.num_accepted_drafts

    @property
    def num_rows(self) -> int:
        """Rows the model really computed for this sequence."""
        return self.num_accepted_tokens + self.num_rejected_tokens


@dataclass(frozen=True, slots=True)
class StepResult:
    """`sequences` in the order of the plan.

    draft_s   of the step's seconds, how many went into proposing drafts and keeping draft caches
    """

    sequences: tuple[SequenceResult, ...]
    draft_s: float = 0.0
