"""Sparse attention in float32, written out."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels import invariant


def sparse_attention(q: Tensor, rows: Tensor, is_valid: Tensor, sink: Tensor, scale: float) -> Tensor:
    rows = rows.masked_fill(~is_valid.unsqueeze(-1), 0.0)
    scores = invariant.batched_matmul(q, rows.transpose(1, 2)) * scale
    scores = scores.masked_fill(~is_valid.unsqueeze(1), -torch.inf)
    sink = sink.view(1, -1, 1)
    highest = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True) + torch.exp(sink - highest)
    return invariant.batched_matmul(weights, rows) / total
