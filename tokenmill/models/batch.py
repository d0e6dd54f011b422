"""The ragged batch that a model's forward pass sees: all tokens of a step flattened, nothing padded.

Built by engine/runners/torch from a StepPlan; read-only for models. Dimensions: T tokens of this step, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupTable:
    """Block tables of one cache group for the B sequences of the step.

    block_ids    [B, n] int64, row b padded with 0 behind its own length; logical block i of sequence b is
                 block_ids[b, i - first_block[b]]
    first_block  [B] int64, blocks before it are freed (window groups); 0 for groups without a window
    """

    block_ids: Tensor
    first_block: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """
    token_ids     [T] int64
    positions     [T] int64, position of each token in its sequence
    cu_seqlens    B+1 ints, starts at 0: sequence b owns rows cu_seqlens[b] .. cu_seqlens[b+1]
    context_lens  B ints: tokens of the sequence computed before this step (already in the caches)
    draft_lens    B ints: how many of the sequence's last rows are drafts whose fate `commit` decides
    block_size    source tokens per logical block
    tables        by cache group name
    protected_lens  B ints: below these positions, groups without a window hold shared rows that must not be written
                    (the rows are computed again only to rebuild window groups); () = all zero
    """

    token_ids: Tensor
    positions: Tensor
    cu_seqlens: tuple[int, ...]
    context_lens: tuple[int, ...]
    draft_lens: tuple[int, ...]
    block_size: int
    tables: dict[str, GroupTable] = field(default_factory=dict)
    protected_lens: tuple[int, ...] = ()

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)

    @property
    def num_tokens(self) -> int:
        return self.cu_seqlens[-1]

    def query_len(self, b: int) -> int:
        return self.cu_seqlens[b + 1] - self.cu_seqlens[b]

    def sequence_ids(self) -> Tensor:
        """[T] int64: which sequence each row belongs to."""
        lens = torch.tensor([self.query_len(b) for b in range(self.num_seqs)])
        return torch.repeat_interleave(torch.arange(self.num_seqs), lens)
