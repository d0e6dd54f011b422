"""Windows of the overlapping compressor (ratio 4) over chunk and step boundaries: gather, close, remember.

Rows of a step meet the rows that the cached state remembers in two pools, one for part A (for the NEXT entry) and
one for part B (for this entry); an entry or a new state is then a plain gather, and raw rows are never rounded.
Pool A: 7 remembered rows per sequence (4 of the last closed window, at most 3 open), then the T rows of the step.
Pool B: 3 remembered rows per sequence (open), then the T rows of the step.
Not responsible for: projections, norm, rotation, storage of entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.compressor.reference import pool_overlap
from tokenmill.models.deepseek_v4.config import CSA_RATIO
from tokenmill.models.deepseek_v4.groups import CSA_STATE_ROWS
from tokenmill.models.deepseek_v4.step_index import Checkpoints, Closing, Sequences

_OPEN = CSA_RATIO - 1
_MEMORY_A, _MEMORY_B = CSA_RATIO + _OPEN, _OPEN
assert CSA_STATE_ROWS == _MEMORY_A + _MEMORY_B


@dataclass(frozen=True, slots=True)
class CsaPools:
    """a [2, 7 B + T, D], b [2, 3 B + T, D]: kv first, then the gate with its position bias."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class StateRows:
    """Pool rows that make up a state after n tokens, and which of them exist: a [c, 7], b [c, 3]."""

    a: Tensor
    a_exists: Tensor
    b: Tensor
    b_exists: Tensor


class CsaWindows:
    """Index arithmetic of one step, shared by all CSA layers and by main compressor and indexer."""

    def __init__(self, seqs: Sequences, closing: Closing) -> None:
        self._seqs = seqs
        self._num_seqs = len(seqs.context)
        self._open_start = torch.div(seqs.context, CSA_RATIO, rounding_mode="floor") * CSA_RATIO
        start = closing.entry[:, None] * CSA_RATIO + torch.arange(CSA_RATIO)
        self._entry_a = self._pool_a(closing.owner[:, None], start - CSA_RATIO)
        self._entry_b = self._pool_b(closing.owner[:, None], start)
        self._is_first = (closing.entry == 0)[:, None, None]

    def _pool_a(self, owner: Tensor, position: Tensor) -> Tensor:
        """Pool row of part A of a token at `position`; memory starts one window before the open one."""
        memory = owner * _MEMORY_A + position - (self._open_start[owner] - CSA_RATIO)
        return self._choose(owner, position, memory, self._num_seqs * _MEMORY_A)

    def _pool_b(self, owner: Tensor, position: Tensor) -> Tensor:
        memory = owner * _MEMORY_B + position - self._open_start[owner]
        return self._choose(owner, position, memory, self._num_seqs * _MEMORY_B)

    def _choose(self, owner: Tensor, position: Tensor, memory: Tensor, num_memory: int) -> Tensor:
        context = self._seqs.context[owner]
        step_row = num_memory + self._seqs.first_row[owner] + position - context
        # Positions before the sequence (entry 0's part A) are masked by the caller; any valid row will do.
        return torch.where(position >= context, step_row, memory).clamp(min=0)

    def pools(self, state: Tensor, read_blocks: Tensor, rows: Tensor) -> CsaPools:
        """state [blocks, 2, 10, D] of one layer, read_blocks [B], rows [2 (kv, gate), 2 (A, B), T, D]."""
        memory = state[read_blocks].transpose(0, 1)  # [2, B, 10, D]
        remembered_a = memory[:, :, :_MEMORY_A].flatten(1, 2)
        remembered_b = memory[:, :, _MEMORY_A:].flatten(1, 2)
        return CsaPools(torch.cat((remembered_a, rows[:, 0]), dim=1), torch.cat((remembered_b, rows[:, 1]), dim=1))

    def close(self, pools: CsaPools) -> Tensor:
        """[n, D]: pooled entries that close in this step, before norm and rotation."""
        kv_a, gate_a = pools.a[:, self._entry_a]
        kv_b, gate_b = pools.b[:, self._entry_b]
        kv_a = kv_a.masked_fill(self._is_first, 0.0)
        gate_a = gate_a.masked_fill(self._is_first, -torch.inf)
        return pool_overlap(torch.cat((kv_a, kv_b), dim=1), torch.cat((gate_a, gate_b), dim=1))

    def state_rows(self, checkpoints: Checkpoints) -> StateRows:
        """Where the state after `num_tokens` tokens comes from; needs num_tokens > context."""
        owner, n = checkpoints.owner[:, None], checkpoints.num_tokens[:, None]
        open_start = torch.div(n, CSA_RATIO, rounding_mode="floor") * CSA_RATIO
        a = open_start - CSA_RATIO + torch.arange(_MEMORY_A)
        b = open_start + torch.arange(_MEMORY_B)
        a_exists, b_exists = (a >= 0) & (a < n), b < n
        return StateRows(
            self._pool_a(owner, torch.where(a_exists, a, n - 1)),
            a_exists,
            self._pool_b(owner, torch.where(b_exists, b, n - 1)),
            b_exists,
        )


def write_state(state: Tensor, pools: CsaPools, rows: StateRows, blocks: Tensor) -> None:
    """Rows that do not exist are written as zeros: a state's bytes are a function of the tokens alone."""
    a = pools.a[:, rows.a].masked_fill(~rows.a_exists[..., None], 0.0)
    b = pools.b[:, rows.b].masked_fill(~rows.b_exists[..., None], 0.0)
    state[blocks] = torch.cat((a, b), dim=2).transpose(0, 1)
