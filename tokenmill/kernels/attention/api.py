"""Attention of a ragged batch over a paged cache: grouped query heads, causal, optional window and sinks.

`plan` is computed once per step and reused by every layer; a layer's call writes the step's keys and values into
its cache and returns the attended values. Not responsible for: rotating, projections, which block is where.

Cache of one layer: [num_blocks, 2, G, block_size, D] (key, value), G = key/value heads. One head's rows of a block
lie together, so that gathering a context by block table needs no transposition afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is the same for all layers that share a plan.

    num_heads     query heads H, a multiple of num_kv_heads
    window        a token sees itself and the window - 1 tokens before it; None: everything before it
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the rows of a step and their contexts lie, for one cache group.

    cu_seqlens    B+1 ints: sequence b owns rows cu_seqlens[b] .. cu_seqlens[b+1]
    context_lens  B ints: tokens already in the cache
    block_ids     [B, n] int64, padded with 0; logical block i of b is block_ids[b, i - first_block[b]]
    first_block   [B] int64
    protected_lens  B ints: rows at positions below are in the cache already and must not be written; () = none
    """

    cu_seqlens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_ids: Tensor
    first_block: Tensor
    block_size: int
    protected_lens: tuple[int, ...] = ()

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)

    def query_len(self, b: int) -> int:
        return self.cu_seqlens[b + 1] - self.cu_seqlens[b]

    def total_len(self, b: int) -> int:
        """Context after this step."""
        return self.context_lens[b] + self.query_len(b)

    def positions(self, b: int) -> Tensor:
        return torch.arange(self.context_lens[b], self.total_len(b))


class AttentionKernel(Protocol):
    def plan(self, batch: PagedBatch, spec: AttentionSpec, dtype: torch.dtype) -> Any:
        """Everything that the layers of one step share; opaque to the caller. dtype: of the cache."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, plan: Any, sinks: Tensor | None = None) -> Tensor:
        """q [T, H, D], k and v [T, G, D] -> [T, H, D] in the dtype of q. Writes k and v into `cache` first.

        sinks [H] float32: one more logit per head that takes probability and gives nothing.
        """
        ...


def cache_shape(num_blocks: int, block_size: int, spec: AttentionSpec) -> tuple[int, ...]:
    return num_blocks, 2, spec.num_kv_heads, block_size, spec.head_dim
