"""What a worker tells of its prefix cache: numbered events, and a snapshot that repairs whatever was missed.

Only the groups that a prefix hit requires are told of, and of a group without a window only blocks whose whole prefix
is there too: a block behind a hole is removed, and stored again once the hole is filled. Not responsible for: who
makes them (engine/kvcache), who keeps book (operations/router).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.core.cache_groups import CacheGroup
from tokenmill.core.model_card import ModelCard


class IndexedGroup(msgspec.Struct, frozen=True, array_like=True):
    """window_blocks: blocks before a boundary that a hit there needs; None: all from the start of the prompt."""

    name: str
    window_blocks: int | None = None


class KVFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Whatever two workers must have in common for equal block hashes to mean equal, usable blocks.

    groups          those a hit requires, in the order in which events number them
    rebuild_blocks  blocks before the end of a hit that are computed again, since no window states are kept
    """

    block_size: int
    weights_version: str
    hash_algorithm: str
    tokenizer_digest: str | None
    groups: tuple[IndexedGroup, ...]
    rebuild_blocks: int = 0

    @classmethod
    def of(cls, card: ModelCard, groups: Sequence[CacheGroup], rebuild_blocks: int | None = None) -> KVFormat:
        """rebuild_blocks None: window states are kept, and told of."""
        told = [
            IndexedGroup(g.name, None if g.window_tokens is None else -(-g.window_tokens // card.block_size))
            for g in groups
            if g.is_required and (g.window_tokens is None or (g.window_tokens > 0 and rebuild_blocks is None))
        ]
        return cls(
            block_size=card.block_size,
            weights_version=card.weights_version,
            hash_algorithm=card.hash_algorithm,
            tokenizer_digest=card.tokenizer_digest,
            groups=tuple(told),
            rebuild_blocks=rebuild_blocks or 0,
        )

    def difference(self, other: KVFormat) -> str | None:
        """What differs, for people; None: equal."""
        differences = [
            f"{name} {getattr(other, name)!r} instead of {getattr(self, name)!r}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]
        return ", ".join(differences) or None


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """group: index into KVFormat.groups."""

    group: int
    hashes: list[bytes]


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    group: int
    hashes: list[bytes]


class CacheCleared(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """All groups, all blocks."""


KVChange = BlocksStored | BlocksRemoved | CacheCleared


class KVEvents(msgspec.Struct, frozen=True, tag="kv_events", kw_only=True):
    """Changes in the order in which they happened.

    number  the how-manyth such message of this life of the worker, from 1; the index misses one when it is not the
            next, and asks for a snapshot
    """

    worker_id: str
    incarnation: int
    number: int
    changes: tuple[KVChange, ...]


class KVSnapshot(msgspec.Struct, frozen=True, tag="kv_snapshot", kw_only=True):
    """All blocks that are findable now, by group.

    number  of the last KVEvents whose changes are in here
    """

    worker_id: str
    incarnation: int
    number: int
    format: KVFormat
    hashes: tuple[list[bytes], ...]
