"""Router and experts in float32. A token's experts are added in the order of their numbers, whatever the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels import invariant
from tokenmill.kernels.moe.api import Routing
from tokenmill.kernels.silu_mul.reference import silu_mul


def router(x: Tensor, gate: Tensor, bias: Tensor, top_k: int, scaling: float) -> Routing:
    scores = _scores(x, gate)
    order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
    return _weigh(scores, order[:, :top_k], scaling)


def hash_router(x: Tensor, gate: Tensor, table: Tensor, token_ids: Tensor, scaling: float) -> Routing:
    return _weigh(_scores(x, gate), table[token_ids], scaling)


def experts(x: Tensor, routing: Routing, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
    wide = x.float()
    out = torch.zeros_like(wide)
    rows_of, weights_of = group_by_expert(routing, w13.shape[0])
    for expert, rows in enumerate(rows_of):
        if len(rows):
            hidden = silu_mul(invariant.matmul(wide.index_select(0, rows), w13[expert].float()), limit)
            out.index_add_(0, rows, invariant.matmul(hidden, w2[expert].float()) * weights_of[expert].unsqueeze(1))
    return out


def group_by_expert(routing: Routing, num_experts: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Per expert: its rows, ascending, and their weights (twice where a hash table names it twice)."""
    ids, order = routing.expert_ids.flatten().sort(stable=True)
    counts = torch.bincount(ids, minlength=num_experts).tolist()
    rows = torch.div(order, routing.expert_ids.shape[1], rounding_mode="floor")
    return rows.split(counts), routing.weights.flatten()[order].split(counts)


def _scores(x: Tensor, gate: Tensor) -> Tensor:
    return invariant.softplus(invariant.matmul(x.float(), gate.float())).sqrt()


def _weigh(scores: Tensor, expert_ids: Tensor, scaling: float) -> Routing:
    chosen = scores.gather(1, expert_ids)
    # The tiny addend (also in transformers) keeps a row whose scores all underflow from dividing by zero.
    return Routing(expert_ids, chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scaling)
