"""Attention on CPU: contexts gathered by block table; decodes batched across sequences, prefills one by one.

All indices and masks are made once per step. Sequences with few rows (decode, short verification) are batched when
their rows are equally many and their contexts similarly long, so that padding stays below half of what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.kernels.attention import slots
from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch

_MAX_BATCHED_ROWS = 8  # above, one sequence alone fills the machine
_MAX_PADDING = 2.0  # longest context of a batch / shortest


@dataclass(frozen=True, slots=True)
class _Piece:
    """Sequences attended in one call.

    rows      their rows of the step: a slice where they lie together, else [b * t] int64
    num_seqs, num_rows   b sequences of t rows each
    gather    rows of the cache seen as [blocks * 2 * G, block_size * D], in order [2, b, G, n]
    mask      [b, 1, t, S] additive, in the dtype of the cache; None: plain causal from position 0
    """

    rows: slice | Tensor
    num_seqs: int
    num_rows: int
    gather: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class CpuPlan:
    spec: AttentionSpec
    writes: slots.Writes
    pieces: tuple[_Piece, ...]


class CpuAttention:
    """See attention/api.AttentionKernel."""

    def plan(self, batch: PagedBatch, spec: AttentionSpec, dtype: torch.dtype) -> CpuPlan:
        pieces = tuple(_piece(batch, spec, members, dtype) for members in _group(batch))
        return CpuPlan(spec, slots.writes(batch, spec.num_kv_heads), pieces)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, plan: CpuPlan, sinks: Tensor | None = None
    ) -> Tensor:
        slots.write(cache, plan.writes, k, v)
        if len(plan.pieces) == 1:
            return _attend_piece(q, cache, plan.spec, plan.pieces[0], sinks)
        out = torch.empty_like(q)
        for piece in plan.pieces:
            out[piece.rows] = _attend_piece(q[piece.rows], cache, plan.spec, piece, sinks)
        return out


def _group(batch: PagedBatch) -> Iterator[list[int]]:
    """Sequences that are attended together."""
    num_blocks = {b: -(-batch.total_len(b) // batch.block_size) for b in range(batch.num_seqs)}
    open_groups: dict[int, list[int]] = {}
    for b in sorted(num_blocks, key=lambda b: num_blocks[b]):
        rows = batch.query_len(b)
        if rows == 0:
            continue
        if rows > _MAX_BATCHED_ROWS:
            yield [b]
            continue
        group = open_groups.get(rows)
        if group is not None and num_blocks[b] > _MAX_PADDING * num_blocks[group[0]]:
            yield sorted(group)
            group = None
        open_groups[rows] = [b] if group is None else [*group, b]
    yield from (sorted(group) for group in open_groups.values())


def _piece(batch: PagedBatch, spec: AttentionSpec, members: list[int], dtype: torch.dtype) -> _Piece:
    first_needed = 0
    if spec.window is not None:
        first_needed = min(max(0, batch.context_lens[b] - spec.window + 1) for b in members)
    first_block = first_needed // batch.block_size
    end_block = max(-(-batch.total_len(b) // batch.block_size) for b in members)
    blocks = _blocks(batch, members, first_block, end_block)
    gather = slots.block_rows(blocks, spec.num_kv_heads).flatten()
    num_rows = batch.query_len(members[0])
    is_plain = len(members) == 1 and first_block == 0 and batch.context_lens[members[0]] == 0 and spec.window is None
    mask = None
    if not is_plain:
        keys = torch.arange(first_block * batch.block_size, end_block * batch.block_size)
        mask = _mask(torch.stack([batch.positions(b) for b in members]), keys, spec.window, dtype)
    return _Piece(_rows(batch, members), len(members), num_rows, gather, mask)


def _blocks(batch: PagedBatch, members: list[int], first_block: int, end_block: int) -> Tensor:
    """[b, n]: block of each logical index first_block .. end_block; block 0 stands in where there is none (masked)."""
    logical = torch.arange(first_block, end_block) - batch.first_block[members].unsqueeze(1)
    width = batch.block_ids.shape[1]
    block = batch.block_ids[members].gather(1, logical.clamp(0, width - 1))
    return torch.where((logical >= 0) & (logical < width), block, 0)


def _rows(batch: PagedBatch, members: list[int]) -> slice | Tensor:
    if members == list(range(members[0], members[-1] + 1)):
        return slice(batch.cu_seqlens[members[0]], batch.cu_seqlens[members[-1] + 1])
    return torch.cat([torch.arange(batch.cu_seqlens[b], batch.cu_seqlens[b + 1]) for b in members])


def _mask(positions: Tensor, keys: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """positions [b, t], keys [S] -> [b, 1, t, S]: 0 where a row sees a key, -inf elsewhere."""
    distance = positions.unsqueeze(-1) - keys
    is_hidden = distance < 0
    if window is not None:
        is_hidden |= distance >= window
    return torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf).unsqueeze(1)


def _attend_piece(q: Tensor, cache: Tensor, spec: AttentionSpec, piece: _Piece, sinks: Tensor | None) -> Tensor:
    """q [b * t, H, D] -> [b * t, H, D]."""
    b, t = piece.num_seqs, piece.num_rows
    flat = cache.view(-1, cache.shape[3] * cache.shape[4])
    keys, values = flat.index_select(0, piece.gather).view(2, b, spec.num_kv_heads, -1, spec.head_dim)
    q = q.view(b, t, spec.num_heads, spec.head_dim).transpose(1, 2)
    if piece.mask is None:
        keys, values = keys[:, :, :t], values[:, :, :t]
    out = F.scaled_dot_product_attention(
        q, keys, values, attn_mask=piece.mask, is_causal=piece.mask is None, scale=spec.scale, enable_gqa=True
    )
    return out.transpose(1, 2).reshape(b * t, spec.num_heads, spec.head_dim)
