"""Packed masks on logits: what may not follow becomes -inf. Not responsible for making masks, or for sampling."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tokenmill.engine.structured.base import PackedMask


def apply_mask(logits: Tensor, packed: PackedMask) -> None:
    """In place on one row [V]; ids beyond the mask may not follow."""
    logits.masked_fill_(~unpack_mask(packed, logits.shape[-1]), -torch.inf)


def apply_masks(logits: Tensor, packed_by_row: Mapping[int, PackedMask]) -> None:
    """In place on rows of [R, V]; rows without a mask stay as they are."""
    if not packed_by_row:
        return
    rows = torch.tensor(list(packed_by_row))
    allowed = torch.stack([unpack_mask(packed, logits.shape[-1]) for packed in packed_by_row.values()])
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def unpack_mask(packed: PackedMask, vocab_size: int) -> Tensor:
    """[V] bool"""
    words = np.zeros((vocab_size + 31) // 32, dtype="<u4")
    words[: len(packed)] = packed[: len(words)]
    return torch.from_numpy(np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little").view(bool))


def apply_mask_reference(logits: Tensor, packed: PackedMask) -> None:
    """The same, one token at a time."""
    for token_id in range(logits.shape[-1]):
        word = int(packed[token_id // 32]) if token_id // 32 < len(packed) else 0
        if not word >> (token_id % 32) & 1:
            logits[token_id] = -torch.inf
