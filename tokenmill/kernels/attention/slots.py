"""Row indices into a layer's cache, shared by the attention kernels. Computed once per step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.kernels.attention.api import PagedBatch


@dataclass(frozen=True, slots=True)
class Writes:
    """Rows are of the cache seen as [blocks * 2 * G * block_size, D].

    keys, values   [n * G] int64: rows of the new keys and values
    sources        [n] int64: which rows of the step are written; None: all, in order
    cleared        [m] int64: rows behind the last token of a block that this step opens; None: there are none.
                   They are set to zero, so that what the block's last owner left (perhaps not finite) is never
                   multiplied, not even by a weight of zero
    """

    keys: Tensor
    values: Tensor
    sources: Tensor | None
    cleared: Tensor | None


def block_rows(block_ids: Tensor, num_kv_heads: int) -> Tensor:
    """[b, n] block ids -> [2, b, G, n]: row of each (block, key or value, head) when the cache is seen as
    [num_blocks * 2 * G, block_size, D]."""
    plane = torch.arange(2 * num_kv_heads).view(2, 1, num_kv_heads, 1)
    return block_ids.unsqueeze(1) * (2 * num_kv_heads) + plane


def writes(batch: PagedBatch, num_kv_heads: int) -> Writes:
    """Where the step's keys and values go; protected rows are left out."""
    seq, positions = _rows_and_positions(batch, [batch.positions(b) for b in range(batch.num_seqs)])
    sources = None
    if any(batch.protected_lens):
        sources = (positions >= torch.tensor(batch.protected_lens)[seq]).nonzero().squeeze(1)
        seq, positions = seq[sources], positions[sources]
    planes = _slots(batch, seq, positions, num_kv_heads)
    cleared = _slots(batch, *_rows_and_positions(batch, _opened(batch)), num_kv_heads).flatten()
    return Writes(planes[:, 0].flatten(), planes[:, 1].flatten(), sources, cleared if cleared.numel() else None)


def _rows_and_positions(batch: PagedBatch, positions: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Per-sequence positions -> (sequence of each, all positions)."""
    lens = torch.tensor([len(p) for p in positions], dtype=torch.int64)
    return torch.repeat_interleave(torch.arange(batch.num_seqs), lens), torch.cat(positions)


def _opened(batch: PagedBatch) -> list[Tensor]:
    """Per sequence: positions behind its last token, in the last block, if this step is the first to write there."""
    opened = []
    for b in range(batch.num_seqs):
        total = batch.total_len(b)
        block_begin = (total - 1) // batch.block_size * batch.block_size
        is_opened = batch.query_len(b) > 0 and batch.context_lens[b] <= block_begin
        opened.append(torch.arange(total, block_begin + batch.block_size if is_opened else total))
    return opened


def _slots(batch: PagedBatch, seq: Tensor, positions: Tensor, num_kv_heads: int) -> Tensor:
    """-> [n, 2, G] int64 rows."""
    logical = torch.div(positions, batch.block_size, rounding_mode="floor") - batch.first_block[seq]
    block, offset = batch.block_ids[seq, logical], positions % batch.block_size
    plane = torch.arange(2 * num_kv_heads).view(1, 2, num_kv_heads)
    return (block.view(-1, 1, 1) * (2 * num_kv_heads) + plane) * batch.block_size + offset.view(-1, 1, 1)


def write(cache: Tensor, to: Writes, k: Tensor, v: Tensor) -> None:
    """Store k and v [T, G, D]."""
    if to.sources is not None:
        k, v = k[to.sources], v[to.sources]
    rows = cache.view(-1, cache.shape[-1])
    if to.cleared is not None:
        rows.index_fill_(0, to.cleared, 0.0)
    rows.index_copy_(0, to.keys, k.reshape(-1, k.shape[-1]).to(cache.dtype))
    rows.index_copy_(0, to.values, v.reshape(-1, v.shape[-1]).to(cache.dtype))
