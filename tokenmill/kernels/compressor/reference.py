"""Compressor pooling in float32: the overlapping softmax written out, the online one strictly token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.kernels.compressor.api import OnlineState


def pool_overlap(kv: Tensor, gate: Tensor) -> Tensor:
    weights = torch.exp(gate - gate.amax(1, keepdim=True))
    weighted, total = weights[:, 0] * kv[:, 0], weights[:, 0]
    for i in range(1, kv.shape[1]):
        weighted, total = weighted + weights[:, i] * kv[:, i], total + weights[:, i]
    return weighted / total


def empty_state(num_lanes: int, width: int) -> OnlineState:
    zeros = torch.zeros(num_lanes, width)
    return OnlineState(torch.full((num_lanes, width), -torch.inf), zeros, zeros.clone())


def pool_online(state: OnlineState, kv: Tensor, gate: Tensor, first_row: Tensor, num_rows: Tensor) -> OnlineState:
    """Lanes are sorted by length, so that step j works on a prefix of them."""
    order = torch.argsort(num_rows, descending=True, stable=True)
    first, lengths = first_row[order], num_rows[order]
    maximum, total, weighted = (t[order].clone() for t in (state.maximum, state.total, state.weighted))
    steps = torch.arange(int(lengths[0]) if len(lengths) else 0)
    active = (lengths[None, :] > steps[:, None]).sum(1).tolist()
    for j, n in enumerate(active):
        rows = first[:n] + j
        new_gate, new_kv = gate[rows], kv[rows]
        new_maximum = torch.maximum(maximum[:n], new_gate)
        keep, add = torch.exp(maximum[:n] - new_maximum), torch.exp(new_gate - new_maximum)
        total[:n] = total[:n] * keep + add
        weighted[:n] = weighted[:n] * keep + add * new_kv
        maximum[:n] = new_maximum
    back = torch.argsort(order)
    return OnlineState(maximum[back], total[back], weighted[back])


def finish(state: OnlineState) -> Tensor:
    """[lanes, D]: the pooled entry of windows that are complete."""
    return state.weighted / state.total
