"""Mixture of experts: which experts a token visits (router) and what they compute (experts).

Router of V4: s = sqrt(softplus(gate x)); experts are the top K of s + bias, or a table look-up by token id in hash
layers; weights are s of the chosen ones, normalised, times routed_scaling_factor. The bias only selects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """expert_ids [T, K] int64, weights [T, K] float32."""

    expert_ids: Tensor
    weights: Tensor


class Router(Protocol):
    def __call__(self, x: Tensor, gate: Tensor, bias: Tensor, top_k: int, scaling: float) -> Routing:
        """x [T, C], gate [E, C], bias [E] float32. Equal scores: the lower expert wins."""
        ...


class HashRouter(Protocol):
    def __call__(self, x: Tensor, gate: Tensor, table: Tensor, token_ids: Tensor, scaling: float) -> Routing:
        """table [V, K] int64: experts of each token id; the gate still gives the weights."""
        ...


class Experts(Protocol):
    def __call__(self, x: Tensor, routing: Routing, w13: Tensor, w2: Tensor, limit: float) -> Tensor:
        """x [T, C], w13 [E, 2F, C] (gate half, then up half), w2 [E, C, F] -> sum of weighted experts [T, C] float32.

        limit: swiglu_limit, applied before the activation: gate from above only, up on both sides.
        """
        ...
