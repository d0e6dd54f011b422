"""How a model or proposer declares its caches; allocation, prefix hits and transfer consume only this.

A *logical block* is `block_size` source tokens, the same for every group of a model. Each group stores a
logical block in its own pool, with its own bytes. Not responsible for: which block is where (engine/kvcache).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class GroupKind(StrEnum):
    FULL = "full"
    SLIDING_WINDOW = "sliding_window"
    COMPRESSED = "compressed"
    INDEXER_KEYS = "indexer_keys"
    COMPRESSOR_STATE = "compressor_state"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One kind of cache rows of a model.

    name              unique within the model; key of every per-group map
    bytes_per_block   storage of one logical block, all layers of the group together
    window_tokens     None: a sequence needs all its blocks for ever. w: to compute the token at position t, only
                      positions t-w .. t-1 are needed, so older blocks are freed as the sequence moves on.
                      A state "as of the last computed token of the block" is a window of 1; a state that starts
                      afresh at every block boundary is a window of 0 (nothing is needed for a hit)
    lookahead_tokens  rows at a block's end depend on this many later tokens (MTP: 1); such a block may serve a
                      hit only when those tokens are equal too
    rebuild_tokens    window groups: computing this many tokens before a boundary afresh, beside the cached blocks of
                      the other groups, rebuilds this group's rows exactly; None: it can not be rebuilt so
    is_required       False: a hit may be served although this group's blocks are gone (draft caches)
    """

    name: str
    kind: GroupKind
    bytes_per_block: int
    window_tokens: int | None = None
    lookahead_tokens: int = 0
    rebuild_tokens: int | None = None
    is_required: bool = True

    def first_needed_block(self, num_tokens: int, block_size: int) -> int:
        """Index of the first logical block needed to go on after `num_tokens` tokens are computed."""
        if self.window_tokens is None:
            return 0
        return max(0, num_tokens - self.window_tokens) // block_size


def bytes_per_token(groups: Sequence[CacheGroup], block_size: int) -> float:
    """Growth per source token of a long sequence: only groups without a window grow."""
    return sum(g.bytes_per_block for g in groups if g.window_tokens is None) / block_size
