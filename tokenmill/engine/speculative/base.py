"""The seam of speculative decoding: a proposer guesses the next tokens of sequences, the target verifies them.

A proposer decides nothing: how many drafts a sequence gets is planned by engine/speculative/depth, whether they stay
by the sampler. It may keep caches: cache groups of their own, allocated, shared and rolled back like the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.registry import Registry
from tokenmill.core.request import Request
from tokenmill.core.step import BlockTable
from tokenmill.engine.structured.sequence_grammar import SequenceGrammar
from tokenmill.models.base import Caches
from tokenmill.models.batch import ForwardBatch
from tokenmill.models.features import Features


@dataclass(frozen=True, slots=True)
class DraftWish:
    """One sequence that wants drafts behind its newest token.

    token_ids     prompt and output, read-only; the newest token's row does not exist yet anywhere
    num_drafts    at most so many
    block_tables  cover positions 0 .. len(token_ids) - 1 + num_drafts (window groups: what is left of them)
    grammar       what drafts have to keep to, to be of any use; at the newest token, and left there
    """

    request: Request
    token_ids: Sequence[int]
    num_drafts: int
    block_tables: dict[str, BlockTable]
    grammar: SequenceGrammar | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_computed_tokens(self) -> int:
        return len(self.token_ids) - 1


@dataclass(frozen=True, slots=True)
class Proposal:
    """
    token_ids  at most as many as were wished for; fewer, or none, where there is no good guess
    probs      [n, V] float32, the distributions they were drawn from; None: they were not drawn but chosen
    """

    token_ids: tuple[int, ...] = ()
    probs: Tensor | None = None


NO_PROPOSAL = Proposal()


@dataclass(frozen=True, slots=True)
class ObservedSequence:
    """One sequence of a step that is over.

    first_row     of the batch
    num_kept      rows that stay: positions num_computed_tokens .. + num_kept
    token_ids     with the tokens that were drawn; longer than num_computed_tokens + num_kept: the token that follows
                  each kept row is known
    """

    request: Request
    token_ids: Sequence[int]
    num_computed_tokens: int
    num_kept: int
    first_row: int
    block_tables: dict[str, BlockTable]

    @property
    def request_id(self) -> str:
        return self.request.request_id


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """
    features   [T, ...] what the proposer asked to see of the target, by row of the batch; None: it asked for nothing
    """

    batch: ForwardBatch
    sequences: Sequence[ObservedSequence]
    features: Tensor | None


class Proposer(Protocol):
    """Called by the runner alone: `propose` at the start of a step, `observe` at its end.

    name      how metrics and configuration call it
    features  what it wants to see of the target in every step; None: tokens are enough
    """

    name: str
    features: Features | None

    def cache_groups(self, block_size: int) -> tuple[CacheGroup, ...]:
        """Groups beside the target's own; names must not collide with those."""
        ...

    def allocate_caches(self, num_blocks: dict[str, int], block_size: int) -> Caches: ...

    def bind(self, target: Caches, own: Caches) -> None:
        """The target's caches, and those allocated for the proposer; once, before anything else is called."""
        ...

    def propose(self, wishes: Sequence[DraftWish]) -> list[Proposal]:
        """One per wish. May write rows of its own cache groups at the wished positions; they count for nothing until
        `observe` has seen the tokens there stay."""
        ...

    def observe(self, step: ObservedStep) -> None:
        """The step is over: bring caches and notes of its sequences up to date. A sequence that starts over
        (preempted, or a prefix hit) is seen from a lower or higher position than before."""
        ...

    def lapse(self, request_id: str) -> None:
        """The sequence goes on in a step that is not shown: rows from here on do not exist."""
        ...

    def rows_from(self, request_id: str) -> int | None:
        """See core/step.SequenceResult.draft_rows_from; None also where a proposer keeps no rows."""
        ...

    def forget(self, request_id: str) -> None:
        """The request ended; ids that were never observed are fine."""
        ...


#: name -> build(context: BuildContext) -> Proposer (engine/speculative/build)
PROPOSERS = Registry(
    "speculative method",
    "tokenmill.proposers",
    {
        "ngram": "tokenmill.engine.speculative.ngram:build",
        "draft_model": "tokenmill.engine.speculative.draft_model:build",
        "mtp": "tokenmill.engine.speculative.mtp:build",
        "dflash": "tokenmill.engine.speculative.dflash:build",
    },
)
