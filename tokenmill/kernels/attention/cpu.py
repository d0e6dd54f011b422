"""Attention on CPU: contexts gathered by block table, then plain matrix products in the dtype of the cache.

Sequences with few rows (decode, short verification) are attended together when they have equally many and their
contexts are similarly long; a prefill is cut into tiles of rows, each seeing only the keys before its end. All
indices and masks are made once per step (plan.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels.attention import slots
from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch
from tokenmill.kernels.attention.plan import CpuPlan, Piece, Tile, make_plan


class CpuAttention:
    """See attention/api.AttentionKernel."""

    def plan(self, batch: PagedBatch, spec: AttentionSpec, dtype: torch.dtype) -> CpuPlan:
        return make_plan(batch, spec, dtype)

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


def _attend_piece(q: Tensor, cache: Tensor, spec: AttentionSpec, piece: Piece, sinks: Tensor | None) -> Tensor:
    """q [b * t, H, D] -> [b * t, H, D]."""
    torch.index_select(cache.view(-1, piece.gathered.shape[1]), 0, piece.gather, out=piece.gathered)
    keys, values = piece.gathered.view(2, piece.num_seqs * spec.num_kv_heads, -1, spec.head_dim)
    q = q.view(piece.num_seqs, -1, spec.num_heads, spec.head_dim)
    outs = [_attend_tile(q[:, tile.rows], keys, values, spec, tile, sinks) for tile in piece.tiles]
    return (outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)).flatten(0, 1)


def _attend_tile(
    q: Tensor, keys: Tensor, values: Tensor, spec: AttentionSpec, tile: Tile, sinks: Tensor | None
) -> Tensor:
    """q [b, r, H, D], keys and values [b * G, S, D] -> [b, r, H, D]."""
    b, r, _, d = q.shape
    g = spec.group_size
    folded = q.view(b, r, spec.num_kv_heads, g, d).transpose(1, 2).reshape(-1, r * g, d)
    keys, values = keys[:, tile.keys], values[:, tile.keys]
    scores = torch.baddbmm(_NOTHING.to(q.dtype), folded, keys.transpose(1, 2), beta=0, alpha=spec.scale)
    masked = scores[:, :, -tile.mask.shape[-1] :].view(b, spec.num_kv_heads, r, g, -1)
    masked += tile.mask
    weights = _softmax(scores, sinks, b, r, spec)
    out = torch.bmm(weights, values).view(b, spec.num_kv_heads, r, g, d)
    return out.transpose(1, 2).reshape(b, r, spec.num_heads, d)


_NOTHING = torch.zeros(1, 1, 1)


def _softmax(scores: Tensor, sinks: Tensor | None, b: int, r: int, spec: AttentionSpec) -> Tensor:
    """Over the last dimension; a sink is one more column that is dropped afterwards."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores.dtype).view(1, spec.num_kv_heads, 1, -1).expand(b, -1, r, -1).reshape(len(scores), -1, 1)
    return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
