"""Token embedding: rows of a table by token id."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Embedding(Protocol):
    def __call__(self, table: Tensor, token_ids: Tensor) -> Tensor:
        """table [V, C], token_ids [T] int64 -> [T, C], a copy. Ids outside the table raise IndexError."""
        ...
