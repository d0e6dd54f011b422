"""Attention in float32 whose result for a token never depends on how the batch was cut.

Keys are taken in tiles of 64 that are aligned to absolute positions, with online softmax, so that the token at
position t sums in the same order in a whole prefill, in any chunk and in decode. Tiles that a row may not see, and
rows that pad a batch, change nothing: e^-inf = 0, and adding 0 or multiplying by e^0 = 1 is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.attention import slots
from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch

TILE = 64


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences with equally many rows in this step, computed together.

    rows        [b, t] int64: their rows in the batch
    positions   [b, t] int64: positions of these rows
    keys        [b, n * TILE] int64: cache slot (block * block_size + offset) of each position from first_tile on;
                0 where there is none (masked)
    is_present  [b, n * TILE] bool: such a position exists
    first_tile  tiles before it are seen by no row of the group
    """

    rows: Tensor
    positions: Tensor
    keys: Tensor
    is_present: Tensor
    first_tile: int


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    spec: AttentionSpec
    block_size: int
    writes: slots.Writes
    groups: tuple[_Group, ...]


class ReferenceAttention:
    """See attention/api.AttentionKernel."""

    def plan(self, batch: PagedBatch, spec: AttentionSpec, dtype: torch.dtype) -> ReferencePlan:
        by_len: dict[int, list[int]] = {}
        for b in range(batch.num_seqs):
            by_len.setdefault(batch.query_len(b), []).append(b)
        groups = tuple(_group(batch, spec, members) for length, members in by_len.items() if length > 0)
        return ReferencePlan(spec, batch.block_size, slots.writes(batch, spec.num_kv_heads), groups)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Tensor, plan: ReferencePlan, sinks: Tensor | None = None
    ) -> Tensor:
        slots.write(cache, plan.writes, k, v)
        out = torch.empty(q.shape, dtype=torch.float32)
        for group in plan.groups:
            out[group.rows] = _attend_group(q.float(), cache, group, plan, sinks)
        return out.to(q.dtype)


def _group(batch: PagedBatch, spec: AttentionSpec, members: list[int]) -> _Group:
    first_needed = [0 if spec.window is None else max(0, batch.context_lens[b] - spec.window + 1) for b in members]
    first_tile = min(first_needed) // TILE
    end_tile = -(-max(batch.total_len(b) for b in members) // TILE)
    positions = torch.arange(first_tile * TILE, end_tile * TILE)
    total = torch.tensor([batch.total_len(b) for b in members]).unsqueeze(1)
    table, first_block = batch.block_ids[members], batch.first_block[members].unsqueeze(1)
    logical = torch.div(positions, batch.block_size, rounding_mode="floor") - first_block
    is_present = (positions < total) & (logical >= 0)
    block = table.gather(1, logical.clamp(0, table.shape[1] - 1))
    return _Group(
        rows=torch.stack([torch.arange(batch.cu_seqlens[b], batch.cu_seqlens[b + 1]) for b in members]),
        positions=torch.stack([batch.positions(b) for b in members]),
        keys=torch.where(is_present, block * batch.block_size + positions % batch.block_size, 0),
        is_present=is_present,
        first_tile=first_tile,
    )


def _attend_group(q: Tensor, cache: Tensor, group: _Group, plan: ReferencePlan, sinks: Tensor | None) -> Tensor:
    """-> [b, t, H, D]."""
    spec, (b, t) = plan.spec, group.rows.shape
    queries = _fold(q[group.rows] * spec.scale, spec)  # [b * G, t * H/G, D]
    highest = torch.full((*queries.shape[:2], 1), -torch.inf)
    total = torch.zeros_like(highest)
    values = torch.zeros_like(queries)
    for tile in range(group.keys.shape[1] // TILE):
        keys, tile_values = _gather(cache, group, tile, plan)
        scores = invariant.batched_matmul(queries, keys.transpose(1, 2))
        scores = scores.masked_fill(_hidden(group, tile, spec), -torch.inf)
        new_highest = torch.maximum(highest, scores.amax(-1, keepdim=True))
        base = torch.where(new_highest == -torch.inf, 0.0, new_highest)  # nothing seen so far
        weights, shrink = torch.exp(scores - base), torch.exp(highest - base)
        total = total * shrink + weights.sum(-1, keepdim=True)
        values = values * shrink + invariant.batched_matmul(weights, tile_values)
        highest = new_highest
    if sinks is not None:
        logit = sinks.float().view(1, spec.num_kv_heads, 1, -1).expand(b, -1, t, -1).reshape(highest.shape)
        base = torch.maximum(highest, logit)
        shrink = torch.exp(highest - base)
        total, values = total * shrink + torch.exp(logit - base), values * shrink
    return _unfold(values / total, b, t, spec)


def _gather(cache: Tensor, group: _Group, tile: int, plan: ReferencePlan) -> tuple[Tensor, Tensor]:
    """Keys and values of one tile, each [b * G, TILE, D] float32; absent positions are zero."""
    here = slice(tile * TILE, (tile + 1) * TILE)
    slot, is_present = group.keys[:, here], group.is_present[:, here]
    block, offset = torch.div(slot, plan.block_size, rounding_mode="floor"), slot % plan.block_size
    both = cache[block, :, :, offset].float()  # [b, TILE, 2, G, D]
    both = torch.where(is_present[:, :, None, None, None], both, 0.0)
    both = both.permute(2, 0, 3, 1, 4).reshape(2, -1, TILE, cache.shape[-1])
    return both[0], both[1]


def _hidden(group: _Group, tile: int, spec: AttentionSpec) -> Tensor:
    """[b * G, t * H/G, TILE] bool: positions that a row may not see."""
    first = (group.first_tile + tile) * TILE
    distance = group.positions.unsqueeze(-1) - torch.arange(first, first + TILE)  # [b, t, TILE]
    hidden = distance < 0
    if spec.window is not None:
        hidden |= distance >= spec.window
    b, t, _ = hidden.shape
    return (
        hidden.view(b, 1, t, 1, TILE)
        .expand(b, spec.num_kv_heads, t, spec.group_size, TILE)
        .reshape(-1, t * spec.group_size, TILE)
    )


def _fold(q: Tensor, spec: AttentionSpec) -> Tensor:
    """[b, t, H, D] -> [b * G, t * H/G, D]: the query heads of one key head become rows."""
    b, t, _, d = q.shape
    q = q.view(b, t, spec.num_kv_heads, spec.group_size, d).permute(0, 2, 1, 3, 4)
    return q.reshape(b * spec.num_kv_heads, t * spec.group_size, d)


def _unfold(x: Tensor, b: int, t: int, spec: AttentionSpec) -> Tensor:
    """The inverse of _fold."""
    x = x.view(b, spec.num_kv_heads, t, spec.group_size, -1).permute(0, 2, 1, 3, 4)
    return x.reshape(b, t, spec.num_heads, -1)
