"""Gated activation in float32."""

from __future__ import annotations

from torch import Tensor

from tokenmill.kernels import invariant


def silu_mul(gate_up: Tensor, limit: float | None = None) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (invariant.silu(gate) * up).to(gate_up.dtype)
