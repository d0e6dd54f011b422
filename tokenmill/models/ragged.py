"""Ragged batches for passes beside the step's own: some rows of it, or the next position of some sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tokenmill.core.step import BlockTable
from tokenmill.models.batch import ForwardBatch, GroupTable


def group_table(tables: Sequence[BlockTable]) -> GroupTable:
    width = max(len(t.block_ids) for t in tables)
    rows = [t.block_ids + (0,) * (width - len(t.block_ids)) for t in tables]
    block_ids = np.array(rows, dtype=np.int64).reshape(len(rows), width)
    first_block = np.array([t.first_block for t in tables], dtype=np.int64)
    return GroupTable(torch.from_numpy(block_ids), torch.from_numpy(first_block))


def ragged_batch(
    token_ids: Sequence[Sequence[int]],
    starts: Sequence[int],
    tables: Mapping[str, Sequence[BlockTable]],
    block_size: int,
) -> ForwardBatch:
    """Sequence b computes token_ids[b] from position starts[b] on; every position before is in its caches."""
    cu_seqlens = [0]
    for ids in token_ids:
        cu_seqlens.append(cu_seqlens[-1] + len(ids))
    return ForwardBatch(
        token_ids=torch.tensor([token for ids in token_ids for token in ids], dtype=torch.long),
        positions=torch.tensor(
            [start + i for start, ids in zip(starts, token_ids, strict=True) for i in range(len(ids))],
            dtype=torch.long,
        ),
        cu_seqlens=tuple(cu_seqlens),
        context_lens=tuple(starts),
        draft_lens=(0,) * len(starts),
        block_size=block_size,
        tables={name: group_table(rows) for name, rows in tables.items()},
    )
