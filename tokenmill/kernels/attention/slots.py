"""Row indices into a layer's cache, shared by the attention kernels. Computed once per step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.attention.api import PagedBatch


@dataclass(frozen=True, slots=True)
class Writes:
    """
    targets   [n, 2, G] int64: rows of new keys and values when the cache is seen as [blocks * 2 * G * block_size, D]
    sources   [n] int64: which rows of the step are written; None: all, in order
    """

    targets: Tensor
    sources: Tensor | None


def block_rows(block_ids: Tensor, num_kv_heads: int) -> Tensor:
    """[b, n] block ids -> [2, b, G, n]: row of each (block, key or value, head) when the cache is seen as
    [num_blocks * 2 * G, block_size, D]."""
    plane = torch.arange(2 * num_kv_heads).view(2, 1, num_kv_heads, 1)
    return block_ids.unsqueeze(1) * (2 * num_kv_heads) + plane


def writes(batch: PagedBatch, num_kv_heads: int) -> Writes:
    """Where the step's keys and values go; protected rows are left out."""
    lens = torch.tensor([batch.query_len(b) for b in range(batch.num_seqs)])
    seq = torch.repeat_interleave(torch.arange(batch.num_seqs), lens)
    positions = torch.cat([batch.positions(b) for b in range(batch.num_seqs)])
    sources = None
    if any(batch.protected_lens):
        sources = (positions >= torch.tensor(batch.protected_lens)[seq]).nonzero().squeeze(1)
        seq, positions = seq[sources], positions[sources]
    logical = torch.div(positions, batch.block_size, rounding_mode="floor") - batch.first_block[seq]
    block, offset = batch.block_ids[seq, logical], positions % batch.block_size
    plane = torch.arange(2 * num_kv_heads).view(1, 2, num_kv_heads)
    targets = (block.view(-1, 1, 1) * (2 * num_kv_heads) + plane) * batch.block_size + offset.view(-1, 1, 1)
    return Writes(targets, sources)


def write(cache: Tensor, to: Writes, k: Tensor, v: Tensor) -> None:
    """Store k and v [T, G, D]."""
    if to.sources is not None:
        k, v = k[to.sources], v[to.sources]
    flat = cache.view(-1, cache.shape[-1])
    flat[to.targets[:, 0]] = k.to(cache.dtype)
    flat[to.targets[:, 1]] = v.to(cache.dtype)
