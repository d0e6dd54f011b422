"""Row and slot arithmetic of one step, made once and shared by all layers. No arithmetic on activations here.

Dimensions: T rows of the step, B sequences, W window slots per row, R window rows read from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.models.batch import ForwardBatch, GroupTable

#: Rows per query are padded to a multiple of this many (kernels/invariant.batched_matmul).
KEY_MULTIPLE = 16


def ragged(starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """start, end per owner [B] -> (owner, value) of all integers in start .. end - 1, owner by owner."""
    lens = (ends - starts).clamp(min=0)
    owner = torch.repeat_interleave(torch.arange(len(lens)), lens)
    first = lens.cumsum(0) - lens
    return owner, torch.arange(len(owner)) - first[owner] + starts[owner]


def slots_of(table: GroupTable, owner: Tensor, row: Tensor, rows_per_block: int) -> Tensor:
    """Physical row of logical row `row` of sequence `owner`, for a cache viewed as [blocks x rows_per_block, width].

    The row's block must be in the table.
    """
    block = torch.div(row, rows_per_block, rounding_mode="floor")
    return table.block_ids[owner, block - table.first_block[owner]] * rows_per_block + row % rows_per_block


@dataclass(frozen=True, slots=True)
class Sequences:
    """Per sequence [B] int64.

    context    tokens before the step
    total      tokens after it, drafts included
    certain    tokens after it without the drafts, whose fate `commit` decides
    first_row  of the batch
    protected  entries of tokens before it are shared and must not be written
    """

    context: Tensor
    total: Tensor
    certain: Tensor
    first_row: Tensor
    protected: Tensor

    @classmethod
    def of(cls, batch: ForwardBatch) -> Sequences:
        context, bounds = torch.tensor(batch.context_lens), torch.tensor(batch.cu_seqlens)
        total = context + bounds[1:] - bounds[:-1]
        protected = torch.tensor(batch.protected_lens) if batch.protected_lens else torch.zeros_like(context)
        return cls(context, total, total - torch.tensor(batch.draft_lens), bounds[:-1], protected)


@dataclass(frozen=True, slots=True)
class WindowIndex:
    """
    write_slots  [T] where each row's kv goes
    read_slots   [R] rows to fetch, this step's own included
    rows         [T, W'] into those R rows, oldest first; W' is W padded to a multiple of 16
    is_valid     [T, W'] False before the sequence's start, in the padding, and where a draft cache has no block
    """

    write_slots: Tensor
    read_slots: Tensor
    rows: Tensor
    is_valid: Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, seqs: Sequences, seq_ids: Tensor, group: str, window: int) -> WindowIndex:
        table, block_size = batch.tables[group], batch.block_size
        present = torch.maximum(seqs.context - window + 1, table.first_block * block_size).clamp(min=0)
        owner, position = ragged(present, seqs.total)
        read_slots = slots_of(table, owner, position, block_size)
        lens = seqs.total - present
        base = lens.cumsum(0) - lens - present  # row of position p of sequence b is base[b] + p
        width = window + -window % KEY_MULTIPLE
        offsets = torch.arange(width)
        keys = batch.positions[:, None] - window + 1 + offsets
        is_valid = (keys >= present[seq_ids, None]) & (offsets < window)
        rows = torch.where(is_valid, base[seq_ids, None] + keys, 0)
        return cls(slots_of(table, seq_ids, batch.positions, block_size), read_slots, rows, is_valid)


@dataclass(frozen=True, slots=True)
class Closing:
    """Compressed entries whose window is completed between two token counts: [n] sequence, number, where it goes.

    In order of sequence and number; entries that are protected are left out.
    """

    owner: Tensor
    entry: Tensor
    slots: Tensor
    positions: Tensor  # of the entry's first token, at which it is rotated

    @classmethod
    def of(cls, batch: ForwardBatch, seqs: Sequences, group: str, ratio: int, before: Tensor, after: Tensor) -> Closing:
        owner, entry = ragged(_floor(before, ratio), _floor(after, ratio))
        writable = entry * ratio >= seqs.protected[owner]
        owner, entry = owner[writable], entry[writable]
        slots = slots_of(batch.tables[group], owner, entry, batch.block_size // ratio)
        return cls(owner, entry, slots, entry * ratio)


def _floor(x: Tensor, divisor: int) -> Tensor:
    return torch.div(x, divisor, rounding_mode="floor")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Points at which a compressor's state is written: the end of each block passed, and the last token.

    owner [n] sequence, num_tokens [n] the state is that after so many tokens, block [n] physical block
    """

    owner: Tensor
    num_tokens: Tensor
    block: Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, group: str, before: Tensor, after: Tensor) -> Checkpoints:
        """before, after [B]: tokens of each sequence before and after; nothing where they are equal."""
        table, size = batch.tables[group], batch.block_size
        owner, block = ragged(_floor(before, size), _floor(after + size - 1, size))
        stays = (after > before)[owner]
        owner, block = owner[stays], block[stays]
        num_tokens = torch.minimum((block + 1) * size, after[owner])
        return cls(owner, num_tokens, table.block_ids[owner, block - table.first_block[owner]])
