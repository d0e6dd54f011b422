"""How a step's attention is cut for the CPU kernel: which sequences together, which rows see which keys.

Pure bookkeeping on small index tensors, once per step. Not responsible for: arithmetic (cpu.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.attention import slots
from tokenmill.kernels.attention.api import AttentionSpec, PagedBatch

_MAX_BATCHED_ROWS = 8  # a sequence with more rows is attended alone
_MAX_PADDING = 2  # longest context of a piece / shortest, once the difference is worth a call of its own
_WORTH_A_CALL_BLOCKS = 64
_TILE_ROWS = 128  # a tile's scores then stay in the L2 cache, and half of the square above the diagonal is skipped


@dataclass(frozen=True, slots=True)
class Tile:
    """
    rows   of each sequence of the piece
    keys   of the gathered context, seen by some row
    mask   [b, 1, r, 1, m] additive, in the dtype of the cache, on the last m of these keys; the others are seen by
           all rows
    """

    rows: slice
    keys: slice
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """Sequences attended in one call, equally many rows each.

    rows      their rows of the step: a slice where they lie together, else [b * t] int64
    gather    rows of the cache seen as [blocks * 2 * G, block_size * D], in order [2, b, G, n]
    gathered  [2 * b * G * n, block_size * D], filled anew by every layer: memory that is asked for once per step
              and not once per layer saves most page faults (6 % of a decode step of 32 sequences)
    """

    rows: slice | Tensor
    num_seqs: int
    gather: Tensor
    gathered: Tensor
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class CpuPlan:
    spec: AttentionSpec
    writes: slots.Writes
    pieces: tuple[Piece, ...]


def make_plan(batch: PagedBatch, spec: AttentionSpec, dtype: torch.dtype) -> CpuPlan:
    pieces = tuple(_piece(batch, spec, members, dtype) for members in split(batch))
    return CpuPlan(spec, slots.writes(batch, spec.num_kv_heads), pieces)


def split(batch: PagedBatch) -> Iterator[list[int]]:
    """Sequences that are attended together."""
    num_blocks = [-(-batch.total_len(b) // batch.block_size) for b in range(batch.num_seqs)]
    together: dict[int, list[int]] = {}
    for b in sorted(range(batch.num_seqs), key=lambda b: num_blocks[b]):
        rows = batch.query_len(b)
        if rows > _MAX_BATCHED_ROWS:
            yield [b]
        elif rows > 0:
            members = together.setdefault(rows, [])
            shortest = num_blocks[members[0]] if members else num_blocks[b]
            padding = len(members) * (num_blocks[b] - shortest)
            if padding > _WORTH_A_CALL_BLOCKS and num_blocks[b] > _MAX_PADDING * shortest:
                yield sorted(members)
                members = together[rows] = []
            members.append(b)
    yield from (sorted(members) for members in together.values())


def _piece(batch: PagedBatch, spec: AttentionSpec, members: list[int], dtype: torch.dtype) -> Piece:
    first_needed = min(_first_key(batch.context_lens[b], spec.window) for b in members)
    first_block = first_needed // batch.block_size
    end_block = max(-(-batch.total_len(b) // batch.block_size) for b in members)
    gather = slots.block_rows(_blocks(batch, members, first_block, end_block), spec.num_kv_heads).flatten()
    positions = torch.stack([batch.positions(b) for b in members])
    base, num_keys = first_block * batch.block_size, (end_block - first_block) * batch.block_size
    if len(members) > 1 or positions.shape[1] <= _MAX_BATCHED_ROWS:
        rows = slice(0, positions.shape[1])
        tiles = [_tile(positions, rows, slice(0, num_keys), num_keys, base, spec, dtype)]
    else:
        tiles = list(_prefill_tiles(positions, base, spec, dtype))
    gathered = torch.empty(len(gather), batch.block_size * spec.head_dim, dtype=dtype)
    return Piece(_rows(batch, members), len(members), gather, gathered, tuple(tiles))


def _first_key(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _blocks(batch: PagedBatch, members: list[int], first_block: int, end_block: int) -> Tensor:
    """[b, n]: block of each logical index first_block .. end_block. Where a sequence has none, one of its own stands
    in (masked): another sequence's rows might not be finite, and zero times infinity is not zero."""
    own_end = torch.tensor([-(-batch.total_len(b) // batch.block_size) - 1 for b in members]).unsqueeze(1)
    logical = torch.arange(first_block, end_block).minimum(own_end) - batch.first_block[members].unsqueeze(1)
    return batch.block_ids[members].gather(1, logical.clamp(min=0))


def _rows(batch: PagedBatch, members: list[int]) -> slice | Tensor:
    if members == list(range(members[0], members[-1] + 1)):
        return slice(batch.cu_seqlens[members[0]], batch.cu_seqlens[members[-1] + 1])
    return torch.cat([torch.arange(batch.cu_seqlens[b], batch.cu_seqlens[b + 1]) for b in members])


def _prefill_tiles(positions: Tensor, base: int, spec: AttentionSpec, dtype: torch.dtype) -> Iterator[Tile]:
    """positions [1, t]: consecutive. Without a window only the square under the diagonal needs a mask."""
    first, num_rows = int(positions[0, 0]), positions.shape[1]
    for start in range(0, num_rows, _TILE_ROWS):
        rows = slice(start, min(start + _TILE_ROWS, num_rows))
        begin, end = _first_key(first + start, spec.window) - base, first + rows.stop - base
        num_masked = rows.stop - start if spec.window is None else end - begin
        yield _tile(positions[:, rows], rows, slice(begin, end), num_masked, base, spec, dtype)


def _tile(
    positions: Tensor, rows: slice, keys: slice, num_masked: int, base: int, spec: AttentionSpec, dtype: torch.dtype
) -> Tile:
    """positions [b, r]; the last `num_masked` of `keys` get a mask: 0 where a row sees a key, -inf elsewhere."""
    distance = positions.unsqueeze(-1) - torch.arange(base + keys.stop - num_masked, base + keys.stop)
    is_hidden = distance < 0
    if spec.window is not None:
        is_hidden |= distance >= spec.window
    mask = torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, -torch.inf)
    return Tile(rows, keys, mask[:, None, :, None, :])
